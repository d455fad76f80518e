package views

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Lists of all views have what the plain implementation keeps of the whole lists. So have all other
// reads, of a few views of each resource.
func TestReads(t *testing.T) {
	w := sharedWorld(t)
	t.Run("resources", func(t *testing.T) {
		for _, r := range w.all {
			t.Run(r.name(), func(t *testing.T) {
				t.Parallel()
				w.checkReads(t, r)
			})
		}
	})
	w.sources.check(t)
}

func (w *world) checkReads(t *testing.T, r *resource) {
	t.Helper()
	const few, some = 2, 8
	random := rand.New(rand.NewPCG(cluster.Seed(), seedOf(r.name()+" reads")))
	reads := w.readsOf(t, r, random)
	for _, of := range reads {
		views := few
		switch of.name {
		case "list":
			views = len(r.views)
		case "most recent list":
			views = some
		}
		for _, i := range random.Perm(len(r.views))[:views] {
			v := r.views[i]
			if err := w.compare(t.Context(), v, of); err != nil {
				t.Errorf("%s, %s: %v", v, of.name, err)
			}
		}
	}
}

// read is a request that is sent with and without a view.
type read struct {
	name    string
	request cluster.Request
	cut     func(v *view, whole tree) tree
	source  string // of the view's answer; empty for any
	whole   tree   // the answer without a view
}

const (
	partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	table   = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
)

// readsOf returns all reads of a resource.
func (w *world) readsOf(t *testing.T, r *resource, random *rand.Rand) []*read {
	t.Helper()
	cached := map[bool]string{true: cache, false: upstream}[r.cached()]
	ofTables, recent := cached, cached
	if r.forwardsTables() {
		ofTables = upstream
	}
	if r.plural == "events" { // which the apiserver does not cache
		recent = upstream
	}
	all, zero := cluster.Get(r.path()), cluster.Get(r.path()+"?resourceVersion=0")
	reads := []*read{
		{name: "list", request: zero, cut: (*view).cutItems, source: cached},
		{name: "most recent list", request: all, cut: (*view).cutItems, source: recent},
		{
			name: "by label", request: cluster.Get(r.in(namespace) + "?resourceVersion=0&labelSelector=parity%3Deven"),
			cut: (*view).cutItems, source: cached,
		},
		{name: "metadata", request: zero.With("Accept", strings.Replace(partial, "Metadata", "MetadataList", 1)), cut: (*view).cutItems},
		{name: "Table", request: zero.With("Accept", table), cut: (*view).cutRows, source: ofTables},
		{name: "Table with objects", request: cluster.Get(zero.Target+"&includeObject=Object").With("Accept", table), cut: (*view).cutRows, source: ofTables},
		{name: "Table without objects", request: cluster.Get(zero.Target+"&includeObject=None").With("Accept", table), cut: (*view).cutRows, source: ofTables},
		{name: "gzip", request: zero.With("Accept-Encoding", "gzip"), cut: (*view).cutItems, source: cached},
		{name: "indented", request: cluster.Get(zero.Target + "&pretty=true"), cut: (*view).cutItems, source: upstream},
		{name: "forwarded", request: all.With("Origin", w.proxy.URL), cut: (*view).cutItems, source: upstream},
		{
			name: "forwarded, gzip", request: all.With("Origin", w.proxy.URL).With("Accept-Encoding", "gzip"), cut: (*view).cutItems, source: upstream,
		},
		{
			name: "forwarded Table", request: cluster.Get(zero.Target+"&includeObject=Object").With("Accept", table).With("Origin", w.proxy.URL),
			cut: (*view).cutRows, source: upstream,
		},
		{
			name: "forwarded metadata", request: all.With("Accept", strings.Replace(partial, "Metadata", "MetadataList", 1)).With("Origin", w.proxy.URL),
			cut: (*view).cutItems, source: upstream,
		},
	}
	whole, err := decode(w.mustT(t, w.api, all).Body)
	if err != nil {
		t.Fatal(err)
	}
	items := at(whole, "items").(list)
	const gets = 2
	for range gets {
		target := r.pathOf(items[random.IntN(len(items))])
		ofTables := ofTables
		if strings.HasSuffix(target, "/large") { // upstream answers Tables of large objects
			ofTables = upstream
		}
		zero := cluster.Get(target + "?resourceVersion=0")
		reads = append(
			reads,
			&read{name: "get of " + target, request: cluster.Get(target), cut: (*view).cut, source: upstream},
			&read{name: "cached get of " + target, request: zero, cut: (*view).cut, source: cached},
			&read{name: "indented get of " + target, request: cluster.Get(target + "?pretty=true"), cut: (*view).cut, source: upstream},
			&read{name: "metadata of " + target, request: zero.With("Accept", partial), cut: (*view).cut},
			&read{name: "forwarded metadata of " + target, request: cluster.Get(target).With("Accept", partial), cut: (*view).cut, source: upstream},
			&read{name: "Table of " + target, request: zero.With("Accept", table), cut: (*view).cutRows, source: ofTables},
			&read{name: "forwarded Table of " + target, request: cluster.Get(target+"?includeObject=Object").With("Accept", table), cut: (*view).cutRows, source: upstream},
		)
	}
	return append(reads, &read{name: "pages", request: cluster.Get(r.path() + "?limit=3"), cut: (*view).cutItems})
}

// compare sends a request with and without a view until the objects do not change in between, and
// compares the answers.
func (w *world) compare(ctx context.Context, v *view, of *read) (err error) {
	const tries = 20
	for range tries {
		if of.whole == nil {
			if of.whole, _, err = w.readAll(ctx, of, "", ""); err != nil {
				return err
			}
		}
		got, raw, err := w.readAll(ctx, of, v.at(""), of.source)
		if err != nil {
			return err
		}
		want := of.cut(v, of.whole)
		difference := differs(want, got, "the answer")
		if difference == "" {
			return leaks(raw, want)
		}
		before := of.whole
		if of.whole, _, err = w.readAll(ctx, of, "", ""); err != nil {
			return err
		}
		if differs(before, of.whole, "") == "" {
			return fmt.Errorf("%s\n%.2000s", difference, raw)
		}
	}
	return fmt.Errorf("the objects changed %d times", tries)
}

// leaks returns an error if a text has a sentinel that the expected answer does not have.
func leaks(raw []byte, want tree) error {
	may := sentinels(encode(nil, want))
	for s := range sentinels(raw) {
		if !may[s] {
			return fmt.Errorf("the answer has %s: %.2000s", s, raw)
		}
	}
	return nil
}

// readAll reads all pages of an answer, and returns them as one. It returns the decompressed bytes,
// too. Two answers without a view may differ, and these differences are replaced.
func (w *world) readAll(ctx context.Context, of *read, view, source string) (whole tree, raw []byte, err error) {
	for r, next := of.request, ""; ; {
		r.Target = view + of.request.Target + next
		r.Protocol = cluster.DrawProtocol(view, of.name)
		answer, err := ask(ctx, w.proxy, r)
		if err != nil {
			return nil, nil, err
		}
		if source != "" {
			w.sources.expect(answer.Header, source, r.Target+" ("+of.name+")")
		}
		body, err := unzipped(answer)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Target, err)
		}
		raw = append(raw, body...)
		page, err := decode(body)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Target, err)
		}
		token := textAt(page, "metadata", "continue")
		page = settled(page)
		if whole == nil {
			whole = page
		} else {
			whole = whole.(*object).with("items", slices.Concat(at(whole, "items").(list), at(page, "items").(list)))
		}
		if token == "" {
			return whole, raw, nil
		}
		next = "&continue=" + url.QueryEscape(token)
	}
}

// unzipped returns the decompressed body of an answer.
func unzipped(a cluster.Answer) ([]byte, error) {
	if a.Header.Get("Content-Encoding") == "" {
		return a.Body, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(a.Body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// age matches a Table's cell that ends with an age.
var age = regexp.MustCompile(`(\d+[ydhms])+( ago\))?$`)

// settled replaces the resourceVersion and the token of a list, and the ages in a Table.
func settled(t tree) tree {
	o := t.(*object)
	meta, ok := o.get("metadata").(*object)
	if !ok || o.get("items") == nil && o.get("rows") == nil || meta.get("name") != nil {
		return t
	}
	o = o.with("metadata", meta.with("resourceVersion", "RV").with("continue", "TOKEN").with("remainingItemCount", "COUNT"))
	rows, ok := o.get("rows").(list)
	if !ok {
		return o
	}
	rows = slices.Clone(rows)
	for i, row := range rows {
		row := row.(*object)
		cells := slices.Clone(row.get("cells").(list))
		for j, cell := range cells {
			if text, ok := cell.(string); ok {
				cells[j] = age.ReplaceAllString(text, "AGE$2")
			}
		}
		rows[i] = row.with("cells", cells)
	}
	return o.with("rows", rows)
}

// Upstream compresses some of the answers that the proxy forwards.
func TestCompressedUpstream(t *testing.T) {
	w := sharedWorld(t)
	r := w.find(t, "api/v1/configmaps")
	answer := w.mustT(t, w.api, cluster.Get(r.path()).With("Accept-Encoding", "gzip"))
	if answer.Status != http.StatusOK || answer.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("upstream does not compress %d bytes: %v", len(answer.Body), answer.Header)
	}
}
