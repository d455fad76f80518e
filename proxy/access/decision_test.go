package access

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// selecting returns the attributes of a list of pods with selectors.
func selecting(t *testing.T, name, labelSelector, fieldSelector string) *authorizer.AttributesRecord {
	t.Helper()
	a := reading(name).(*authorizer.AttributesRecord)
	l, err := labels.Parse(labelSelector)
	if err != nil {
		t.Fatalf("%q: %v", labelSelector, err)
	}
	a.LabelSelectorRequirements, _ = l.Requirements()
	f, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		t.Fatalf("%q: %v", fieldSelector, err)
	}
	a.FieldSelectorRequirements = f.Requirements()
	return a
}

// Upstream interprets every selector in a review as in the request.
func TestSelectorsArriveAsTheyWere(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 1))
	labelTerms := []string{
		"a", "!a", "a=b", "a==b", "a!=b", "a=", "a in (b)", "a in (c,b,a)", "a in ()", "a in (,b)", "a notin (b,c)", "a>1", "a<22",
		"example.com/app=x.y_z", "in=in", "a=notin", "notin!=exists", "  a   in ( b , c ) ", "b=c",
	}
	fieldTerms := []string{
		"a=b", "a==b", "a!=b", "metadata.name=x", "spec.nodeName=", "a=b\\,c", "a=b\\=c", "a=\\\\", "=x", "a!=", "a=b c", "a=<&>", "a\\,b=c", "a=é\xff\x01",
	}
	pick := func(terms []string) string {
		var some []string
		for range random.IntN(4) {
			some = append(some, terms[random.IntN(len(terms))])
		}
		return strings.Join(some, ",")
	}
	const rounds = 1000
	for i := range rounds {
		l, f := pick(labelTerms), pick(fieldTerms)
		if i < len(labelTerms) {
			l = labelTerms[i]
		}
		if i < len(fieldTerms) {
			f = fieldTerms[i]
		}
		if _, err := labels.Parse(l); err != nil {
			continue // such a request is forwarded
		}
		if _, err := fields.ParseSelector(f); err != nil {
			continue
		}
		asked := selecting(t, "u", l, f)
		spec := specOf(asked).ResourceAttributes
		rawLabels, rawFields := "", ""
		if spec.LabelSelector != nil {
			rawLabels = spec.LabelSelector.RawSelector
		}
		if spec.FieldSelector != nil {
			rawFields = spec.FieldSelector.RawSelector
		}
		got := selecting(t, "u", rawLabels, rawFields)
		if !reflect.DeepEqual(sorted(got.LabelSelectorRequirements), sorted(asked.LabelSelectorRequirements)) {
			t.Fatalf("labels %q are written %q", l, rawLabels)
		}
		if !reflect.DeepEqual(sorted(got.FieldSelectorRequirements), sorted(asked.FieldSelectorRequirements)) {
			t.Fatalf("fields %q are written %q", f, rawFields)
		}
		const slack = 4 // for each term: "in(" becomes "in ("
		if len(rawLabels) > len(l)+slack*3 || len(rawFields) > len(f) {
			t.Fatalf("%q %q became %q %q", l, f, rawLabels, rawFields)
		}
	}
}

// sorted sorts requirements. Their order has no meaning, because all of them must hold.
func sorted[R any](requirements []R) []R {
	slices.SortFunc(requirements, func(a, b R) int { return strings.Compare(fmt.Sprintf("%#v", a), fmt.Sprintf("%#v", b)) })
	return requirements
}

// Different reviews have different keys.
func TestQuestionsAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var questions []authorizer.Attributes
		ask := func(change func(a *authorizer.AttributesRecord, u *user.DefaultInfo)) {
			u := &user.DefaultInfo{Name: "good", UID: "1", Groups: []string{"a", "b"}, Extra: map[string][]string{"k": {"v", "w"}, "l": {"x"}}}
			a := &authorizer.AttributesRecord{
				User: u, Verb: "list", Namespace: "n", APIGroup: "g", APIVersion: "v1", Resource: "pods", Subresource: "s", Name: "o", ResourceRequest: true,
			}
			change(a, u)
			questions = append(questions, a)
		}
		for _, verb := range []string{"get", "watch"} {
			ask(func(a *authorizer.AttributesRecord, _ *user.DefaultInfo) { a.Verb = verb })
		}
		for _, name := range []string{"Namespace", "APIGroup", "APIVersion", "Resource", "Subresource", "Name"} {
			ask(func(a *authorizer.AttributesRecord, _ *user.DefaultInfo) {
				reflect.ValueOf(a).Elem().FieldByName(name).SetString("other")
			})
		}
		for _, groups := range [][]string{{"a", "b"}, {"ab"}, {"a", "b", ""}, {"b", "a"}} {
			ask(func(_ *authorizer.AttributesRecord, u *user.DefaultInfo) { u.Groups = groups })
		}
		for _, extra := range []map[string][]string{nil, {"k": {"v"}, "l": {"w", "x"}}} {
			ask(func(_ *authorizer.AttributesRecord, u *user.DefaultInfo) { u.Extra = extra })
		}
		for _, selector := range [][2]string{{"a=b", ""}, {"", "a=b"}} {
			with := selecting(t, "", selector[0], selector[1])
			ask(func(a *authorizer.AttributesRecord, _ *user.DefaultInfo) {
				a.LabelSelectorRequirements, a.FieldSelectorRequirements = with.LabelSelectorRequirements, with.FieldSelectorRequirements
			})
		}
		ask(func(_ *authorizer.AttributesRecord, u *user.DefaultInfo) { u.Name = "good2" })
		ask(func(_ *authorizer.AttributesRecord, u *user.DefaultInfo) { u.UID = "" })
		ask(func(a *authorizer.AttributesRecord, _ *user.DefaultInfo) { a.Namespace, a.APIGroup = "g", "n" })
		ask(func(a *authorizer.AttributesRecord, _ *user.DefaultInfo) { a.Resource, a.Subresource = "s", "pods" })
		for _, path := range []string{"/x", "/y"} {
			ask(func(a *authorizer.AttributesRecord, _ *user.DefaultInfo) { a.ResourceRequest, a.Path = false, path })
		}
		a, j := newTrial(t, Options{AllowTTL: time.Hour, DenyTTL: time.Hour})
		for range 3 {
			for i, q := range questions {
				if decision, _, err := a.Authorize(t.Context(), q); decision != authorizer.DecisionAllow || err != nil {
					t.Fatalf("question %d: %v, %v", i, decision, err)
				}
			}
		}
		if n := j.accesses.Load(); n != int64(len(questions)) {
			t.Errorf("%d questions were reviewed %d times", len(questions), n)
		}
	})
}

// A client without rights sends list after list, each with another large selector. The remembered
// outcomes do not contain the selectors. Upstream receives at most as many bytes as the client
// sends.
func TestDecisionsTakeLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, j := newTrial(t, Options{AllowTTL: time.Hour, DenyTTL: time.Hour})
		j.reason = "no role binding"
		const lists, terms = 50, 2000
		large := selecting(t, "bad", strings.Repeat("a.example.com/b!=c,", terms)+"z", "").LabelSelectorRequirements
		sent := int64(len("a.example.com/b!=c,")*terms) * lists
		for i := range lists {
			q := selecting(t, "bad", fmt.Sprintf("n=%d", i), "")
			q.LabelSelectorRequirements = append(q.LabelSelectorRequirements, large...)
			if decision, reason, err := a.Authorize(t.Context(), q); decision == authorizer.DecisionAllow || reason != j.reason || err != nil {
				t.Fatal(decision, reason, err)
			}
		}
		count, bytes := a.decisions.known.held()
		if count != lists || bytes > lists*(outcomeCost+len(j.reason))+holderCost {
			t.Errorf("%d outcomes take %d bytes", count, bytes)
		}
		if posted := j.posted.Load(); posted > sent+lists*1024 {
			t.Errorf("upstream was posted %d bytes for %d that were sent", posted, sent)
		}
	})
}

// An open watch may use a decision for its TTL since the review, and for five seconds at least. To ask again
// does not prolong it.
func TestAllows(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			a, _ := newTrial(t, Options{AllowTTL: ttl, DenyTTL: ttl})
			reviewed := time.Now()
			for at := time.Duration(0); at <= ttl/2; at += max(ttl/4, 1) {
				time.Sleep(at - time.Since(reviewed))
				allowed, until, err := a.Allows(t.Context(), reading("good"))
				if want := reviewed.Add(max(ttl, countsLeast)); err != nil || !allowed || !until.Equal(want) {
					t.Errorf("TTL %v, after %v: allowed %t until %v, want %v: %v", ttl, at, allowed, until, want, err)
				}
			}
			reviewed = time.Now()
			if allowed, until, err := a.Allows(t.Context(), reading("bad")); err != nil || allowed || !until.Equal(reviewed.Add(ttl)) {
				t.Errorf("TTL %v: allowed %t until %v: %v", ttl, allowed, until, err)
			}
		})
	}
}
