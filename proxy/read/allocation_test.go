//go:build !race

package read

import (
	"fmt"
	"io"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// hotPath is a frequent operation with its budget of allocations.
type hotPath struct {
	name   string
	budget float64
	do     func()
}

// hotPaths are repeated reads of a collection of 10,000 objects.
func hotPaths(tb testing.TB) []hotPath {
	tb.Helper()
	r, snapshot := pageOf(tb, 10_000, 0)
	r.derived = newDerived(tb, 1<<30)
	list := func(r *read) func() {
		from, to := r.filter.KeyRange(r.resource)
		return func() {
			resp, err := r.page(snapshot, from, to)
			if err != nil {
				tb.Fatal(err)
			}
			list, ok := resp.Body.(*fair.List)
			if !ok {
				tb.Fatal("the list was made for this request")
			}
			if _, err := list.Write(io.Discard, r.Memory.Try(fair.LargeBuffer)); err != nil {
				tb.Fatal(err)
			}
		}
	}
	zipped := *r
	zipped.Gzip = true
	paged := *r
	paged.Limit = 500
	return []hotPath{
		{"list of 10,000", 31, list(r)},
		{"list of 10,000, gzip", 42, list(&zipped)},
		{"page of 500", 36, list(&paged)},
	}
}

// Allocations of hot paths do not grow with the size of the result.
func TestAllocationBudgets(t *testing.T) {
	for _, path := range hotPaths(t) {
		path.do()
		if got := testing.AllocsPerRun(50, path.do); got > path.budget {
			t.Errorf("%s: %v allocations, want %v at most", path.name, got, path.budget)
		}
	}
}

// The cost of a page depends only on its content. It does not depend on the size of the collection
// or the page's place in it.
func TestPageCost(t *testing.T) {
	const limit = 50
	cost := map[string]float64{}
	for _, size := range []int{1_000, 100_000} {
		r, snapshot := pageOf(t, size, limit)
		for where, from := range map[string]string{"first": "a/", "middle": fmt.Sprintf("a/c-%06d", size/2)} {
			cost[fmt.Sprint(where, size)] = testing.AllocsPerRun(20, func() {
				items := 0
				for _, span := range pageAt(t, r, snapshot, from).Body.(*fair.List).Content.(*derived.List).Spans {
					items += span.Hi - span.Lo
				}
				if items != limit {
					t.Fatalf("%d items", items)
				}
			})
		}
	}
	for key, allocs := range cost {
		if allocs > cost["first1000"]+5 {
			t.Errorf("%s: %v allocations, %v for the first page of a small collection", key, allocs, cost["first1000"])
		}
	}
}

// A reused selector checks no object of an unchanged page, and its allocations do not grow with the
// collection.
func TestSelectionCost(t *testing.T) {
	r, snapshot := pageOf(t, 10_000, 0)
	r.derived = newDerived(t, 1<<20)
	selecting(t, r, "labelSelector=app%3Dnone") // records the first use
	from, to := r.filter.KeyRange(r.resource)
	list := func() {
		for range r.selected().Spans(snapshot.Tree, from, to) {
			t.Fatal("something is selected")
		}
	}
	list() // remembers the results of the second use
	const budget = 20
	if allocs := testing.AllocsPerRun(20, list); allocs > budget {
		t.Errorf("%v allocations, want %d at most", allocs, budget)
	}
}
