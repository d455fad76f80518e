package conformance

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/fields"
)

// The cache supports every field selector of the apiserver.
func TestFields(t *testing.T) {
	home := newNamespaces(t, "fields", 1)[0]
	last := map[string]uint64{} // by resource
	var watches []row
	all := builtin(t, home)
	for _, s := range all {
		s.begin(t) // two versions have the same objects
	}
	for _, s := range all {
		t.Run(s.of.name, func(t *testing.T) {
			at := max(last[s.of.resource], s.create(t, home))
			last[s.of.resource] = at
			s.check(t, home, at)
			watches = append(watches, s.watches(home)...)
		})
	}
	t.Run("watches", func(t *testing.T) { check(t, watches) })
}

// A custom resource has the fields of its definition, here of three types.
func TestCustomFields(t *testing.T) {
	t.Parallel()
	g := newGadgets(t, typed)
	home := newNamespaces(t, "fields", 1)[0]
	s := custom(&g.collection)
	last := s.create(t, home)
	s.check(t, home, last)
	check(t, s.watches(home))
}

// If an object was written in another version in which the field has no type, the selector compares
// the value in the apiserver's format.
func TestFieldsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	g := newGadgets(t, typed, untyped)
	v2 := g.collection
	v2.root = "/apis/example.com/v2"
	var last uint64
	values := map[string]string{
		"small": "1e-7", "half": "0.5", "long": "123456789.5", "million": "1e6", "large": "1e21", "beyond": "9223372036854775808",
		"text": `"7"`, "yes": "true", "null": "null", "list": "[1,2]", "map": `{}`,
	}
	for name, value := range values {
		rv := object{of: &v2, namespace: "a", name: name, fields: spec(`{"size":` + value + `}`)}.createT(t)
		last = max(last, rv)
	}
	g.cached(g.all() + "?resourceVersion=0")
	catchUp(t, &g.collection, last)
	var rows []row
	for _, value := range []string{
		"1e-07", "0.0000001", "1e-7", "0.5", "1.234567895e+08", "123456789.5", "1000000", "1e+06", "1e6", "1e+21", "1000000000000000000000",
		"9.223372036854776e+18", "9223372036854775808", "9223372036854776000", "7", "true", "", "<nil>", "null", "[1 2]", "[1,2]", "map[]", "{}",
	} {
		target := g.all() + "?resourceVersion=0&fieldSelector=" + url.QueryEscape("spec.size="+fields.EscapeValue(value))
		rows = append(rows, row{name: "as " + value, request: get(target), status: 200, from: cache, open: SomeState(last)})
	}
	check(t, rows)
}

func (s *selectables) check(t *testing.T, home string, last uint64) {
	t.Helper()
	catchUp(t, s.of, last)
	check(t, append(s.rows(home, last), s.refused(home)...))
}

// catchUp waits until both servers have reached a resourceVersion.
func catchUp(t *testing.T, c *collection, rv uint64) {
	t.Helper()
	parts, due := []string{c.all() + "?limit=1&"}, anywhere
	switch {
	case inParts:
		parts = append(parts, c.parts()...)
	case c.uncached:
		due = cache
	}
	for _, part := range parts {
		if err := c.reach(t.Context(), part, rv, due); err != nil {
			t.Fatal(err)
		}
	}
}

// rows returns lists that select by each field.
func (s *selectables) rows(home string, last uint64) (rows []row) {
	recent := SomeState(last)
	for i, f := range s.fields {
		next := s.fields[(i+1)%len(s.fields)]
		for _, form := range []struct {
			selector string
			open     Rule
		}{
			{f.is("=", f.value), something(recent)},
			{f.is("!=", f.value), recent},
			{f.is("=", ""), recent},
			{f.is("!=", ""), recent},
			{f.is("=", f.unset), recent},
			{f.is("=", "nobody"), nothing(recent)},
			{f.is("=", f.value) + "," + next.is("=", next.value), recent},
		} {
			query := "fieldSelector=" + url.QueryEscape(form.selector)
			rows = append(rows,
				row{name: form.selector + ", any", request: get(s.of.in(home) + "?resourceVersion=0&" + query), status: 200, from: s.of.source(cache), open: form.open},
				row{name: form.selector + ", most recent", request: get(s.of.all() + "?" + query), status: 200, from: s.of.source(ifCached), open: form.open},
			)
		}
		for _, selector := range []string{f.is("=", f.value), f.is("!=", f.value)} {
			target := fmt.Sprintf("%s?limit=1&resourceVersion=%d&fieldSelector=%s", s.of.all(), last, url.QueryEscape(selector))
			rows = append(rows, row{name: selector + ", exact page", request: get(target), status: 200, from: s.of.source(cache), open: s.of.exact()})
		}
	}
	return rows
}

// is returns a requirement on the field.
func (f field) is(operator, value string) string {
	return f.label + operator + fields.EscapeValue(value)
}

// refused returns requests that select by fields that the collection does not have.
func (s *selectables) refused(home string) (rows []row) {
	for _, label := range s.foreign {
		for _, query := range []string{"?resourceVersion=0&", "?", "?watch=true&resourceVersion=0&", "?watch=true&"} {
			target := s.of.in(home) + query + "fieldSelector=" + url.QueryEscape(label+"=x")
			rows = append(rows, row{name: target, request: get(target), status: 400, from: upstream, says: fmt.Sprintf(s.refusal, label)})
		}
	}
	return rows
}

// watches returns watches that begin with the selected objects and end soon afterwards.
func (s *selectables) watches(home string) (rows []row) {
	for _, f := range s.fields {
		is, not := f.is("=", f.value), f.is("!=", f.value)
		target := s.of.in(home) + "?" + s.of.brief() + "&fieldSelector="
		rows = append(rows,
			row{name: s.of.name + " by " + is + ", state", request: get(target + url.QueryEscape(is) + "&resourceVersion=0"), status: 200, from: s.of.source(cache)},
			row{name: s.of.name + " by " + not + ", most recent state", request: get(target + url.QueryEscape(not)), status: 200, from: s.of.source(ifCached)},
		)
	}
	return rows
}

var (
	errNothing   = errors.New("nothing is selected")
	errSomething = errors.New("something is selected")
)

// selected reports whether a list or a Table has items.
func selected(body []byte) bool {
	return gjson.GetBytes(body, "items.0").Exists() || gjson.GetBytes(body, "rows.0").Exists()
}

// something is the rule for lists that must not be empty, because an empty list would prove nothing
// about a selector.
func something(open Rule) Rule {
	return func(body []byte) ([]byte, error) {
		if !selected(body) {
			return nil, errNothing
		}
		return open(body)
	}
}

// nothing is the rule for lists that must be empty.
func nothing(open Rule) Rule {
	return func(body []byte) ([]byte, error) {
		if selected(body) {
			return nil, errSomething
		}
		return open(body)
	}
}
