package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Whatever is remembered about pages: a selector selects what it would select from each object, in order, while objects
// come, change and go, for ranges and limits, with room for what is remembered and without.
func TestSelectionIsTheFilters(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, budget := range []int64{1 << 20, 2_000, 1} {
		random := rand.New(rand.NewPCG(seed, uint64(budget)))
		r, _ := pageOf(t, 0, 0)
		r.derived = NewDerived(budget, prometheus.NewRegistry())
		rv := uint64(1)
		object := func(name, color int) *watchcache.Object {
			rv++
			o, err := r.resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"c-%06d","namespace":"a","uid":"u%d","resourceVersion":"%d","labels":{"app":"x","color":"%d"}}}`,
				name, name, rv, color))
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		const names, colors = 500, 5
		there := map[int]bool{}
		for range 300 {
			var changes []watchcache.Change
			for range random.IntN(20) {
				name := random.IntN(names)
				o := object(name, random.IntN(colors))
				gone := there[name] && random.IntN(3) == 0
				there[name] = !gone
				changes = append(changes, watchcache.Change{Deleted: gone, Object: o})
			}
			if err := r.cache.Apply(changes, time.Now()); err != nil {
				t.Fatal(err)
			}
			snapshot, err := r.cache.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			selector, err := labels.Parse([]string{"color=1", "color in (1,2)", "color!=3", "nothing=1"}[random.IntN(4)])
			if err != nil {
				t.Fatal(err)
			}
			if r.filter, err = r.resource.NewFilter("a", selector, nil); err != nil {
				t.Fatal(err)
			}
			from, to := r.filter.KeyRange(r.resource)
			if random.IntN(2) == 0 {
				from = fmt.Sprintf("a/c-%06d", random.IntN(names))
			}
			var want, got []*watchcache.Object
			for o := range snapshot.Objects(from, to) {
				if r.filter.Matches(o) {
					want = append(want, o)
				}
			}
			most := random.IntN(names)
			for span := range r.spans(snapshot, from, to) {
				got = append(got, span.Objects()...)
				if len(got) == most {
					want = want[:most]
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s from %s: %d objects instead of %d", selector, from, len(got), len(want))
			}
		}
	}
}

// A selector that is used again looks at no object of a page that has not changed, and makes no garbage that grows with
// the collection.
func TestSelectionCost(t *testing.T) {
	r, snapshot := pageOf(t, 10_000, 0)
	r.derived = NewDerived(1<<20, prometheus.NewRegistry())
	selector, err := labels.Parse("app=none")
	if err != nil {
		t.Fatal(err)
	}
	if r.filter, err = r.resource.NewFilter("a", selector, nil); err != nil {
		t.Fatal(err)
	}
	from, to := r.filter.KeyRange(r.resource)
	list := func() {
		for range r.spans(snapshot, from, to) {
			t.Fatal("something is selected")
		}
	}
	list()
	const budget = 20
	if allocs := testing.AllocsPerRun(20, list); allocs > budget {
		t.Errorf("%v allocations, want %d at most", allocs, budget)
	}
}
