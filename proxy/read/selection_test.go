package read

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// A selector selects the same objects in the same order as a check of each object, whichever
// results are remembered. This is true while objects are added, change and go, for ranges and
// limits, with room in the store and without.
func TestSelectionIsTheFilters(t *testing.T) {
	seed := cachetest.Seed(t)
	for _, budget := range []int64{1 << 20, 2_000, 1} {
		random := rand.New(rand.NewPCG(seed, uint64(budget)))
		r, _ := pageOf(t, 0, 0)
		r.derived = newDerived(t, budget)
		rv := uint64(1)
		makeObject := func(name, color int) *object.Object {
			rv++
			return objectOf(t, r.resource, `{"metadata":{"name":"c-%06d","namespace":"a","uid":"u%d","resourceVersion":"%d","labels":{"app":"x","color":"%d"}}}`,
				name, name, rv, color)
		}
		const names, colors = 500, 5
		there := map[int]bool{}
		for range 300 {
			var changes []watchcache.Change
			for range random.IntN(20) {
				name := random.IntN(names)
				o := makeObject(name, random.IntN(colors))
				gone := there[name] && random.IntN(3) == 0
				there[name] = !gone
				changes = append(changes, watchcache.Change{Deleted: gone, Object: o})
			}
			if err := r.cache.Writer().Apply(changes, time.Now()); err != nil {
				t.Fatal(err)
			}
			snapshot := cachetest.Snapshot(t, r.cache)
			selector, err := labels.Parse([]string{"color=1", "color in (1,2)", "color!=3", "nothing=1"}[random.IntN(4)])
			if err != nil {
				t.Fatal(err)
			}
			if r.filter, err = object.NewFilter(r.resource, "a", selector, nil); err != nil {
				t.Fatal(err)
			}
			from, to := r.filter.KeyRange(r.resource)
			if random.IntN(2) == 0 {
				from = fmt.Sprintf("a/c-%06d", random.IntN(names))
			}
			var want, got []*object.Object
			for o := range snapshot.Objects(from, to) {
				if r.filter.Matches(o) {
					want = append(want, o)
				}
			}
			most := random.IntN(names)
			for span := range r.selected().Spans(snapshot.Tree, from, to) {
				got = append(got, span.Objects()...)
				if len(got) >= most {
					want = want[:min(len(got), len(want))]
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s from %s: %d objects instead of %d", selector, from, len(got), len(want))
			}
		}
	}
}

// selecting gives a read a selector, and returns the number of selected objects.
func selecting(tb testing.TB, r *read, parameters string) int {
	tb.Helper()
	p, err := exchange.Parse(parameters)
	if err != nil {
		tb.Fatal(err)
	}
	if r.filter, err = object.NewFilter(r.resource, "a", p.Labels, p.Fields); err != nil {
		tb.Fatal(err)
	}
	snapshot := cachetest.Snapshot(tb, r.cache)
	n := 0
	from, to := r.filter.KeyRange(r.resource)
	for span := range r.selected().Spans(snapshot.Tree, from, to) {
		if n += len(span.Objects()); p.Limit > 0 && int64(n) >= p.Limit {
			break
		}
	}
	return n
}

// No selector receives the remembered results of another selector, whatever its values are.
func TestSelectorsAreToldApart(t *testing.T) {
	r, _ := pageOf(t, 0, 0)
	r.derived = newDerived(t, 1<<20)
	resource := *r.resource
	resource.Fields = []object.Field{{Name: "spec.nodeName", Paths: []string{"spec.nodeName"}, Kept: true}, {Name: "status.phase", Paths: []string{"status.phase"}, Kept: true}}
	o := objectOf(t, &resource, `{"metadata":{"name":"x","namespace":"a","uid":"u","resourceVersion":"1"},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}`)
	r.resource, r.cache = &resource, watchcache.New(resource, watchcache.Limits{})
	r.cache.Writer().Reset([]*object.Object{o}, 2)
	for range 3 {
		for query, want := range map[string]int{
			"fieldSelector=spec.nodeName%3Dn1,status.phase%3DRunning":                  1,
			"fieldSelector=spec.nodeName%3Dn1%001%5C,true%5C,Running":                  0,
			"fieldSelector=spec.nodeName%3Dn1%001%5C,true%5C,%22Running%22":            0,
			"fieldSelector=spec.nodeName%3Dn1%22%001%5C,true%5C,%22Running":            0,
			"fieldSelector=spec.nodeName%3Dn1":                                         1,
			"fieldSelector=status.phase!%3DRunning":                                    0,
			"fieldSelector=metadata.name%3Dx":                                          1,
			"fieldSelector=metadata.name%3Dx,status.phase%3DPending":                   0,
			"labelSelector=a%3Db":                                                      0,
			"labelSelector=a!%3Db":                                                     1,
			"labelSelector=!a&fieldSelector=spec.nodeName%3Dn1":                        1,
			"labelSelector=!a&fieldSelector=spec.nodeName%3Dn1%001%5C,true%5C,Running": 0,
		} {
			if got := selecting(t, r, query); got != want {
				t.Errorf("%s selects %d, want %d", query, got, want)
			}
		}
	}
}

// Selectors that are used once use little memory. For every length of a selector, the memory is
// bounded. Reads of a part of the collection do not displace the remembered results.
func TestSelectionMemory(t *testing.T) {
	const objects = 4000
	r, _ := pageOf(t, objects, 0)
	r.derived = newDerived(t, 1<<30)
	const once = 500
	for i := range once {
		selecting(t, r, fmt.Sprintf("labelSelector=app!%%3Dnone-%d", i))
	}
	if each := r.derived.Cost() / once; each > 500 {
		t.Errorf("%d bytes for a selector that is used once", each)
	}
	known := func() int {
		selecting(t, r, "labelSelector=app!%3Dnone&limit=1")
		return len(r.derived.Selection(&r.meter, r.filter, r.resource).Known)
	}
	for range 2 {
		selecting(t, r, "labelSelector=app!%3Dnone")
	}
	before := known()
	if before < objects/64 {
		t.Fatalf("%d pages are known", before)
	}
	for i := range 10 * before { // each change replaces a page
		cachetest.Apply(t, r.cache, cachetest.ConfigMap(t, i%50, objects+10+i))
		if now := known(); i == 0 && now < before || now > 10*before {
			t.Fatalf("%d pages are known after %d changes, %d before", now, i+1, before)
		}
	}
}
