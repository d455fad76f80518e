package read

import (
	"io"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
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
			if resp.List == nil {
				tb.Fatal("the list was made for this request")
			}
			if _, err := resp.WriteBody(tb.Context(), io.Discard, nil, nil); err != nil {
				tb.Fatal(err)
			}
		}
	}
	zipped := *r
	zipped.Request = &exchange.Request{Header: map[string][]string{"Accept-Encoding": {"gzip"}}}
	paged := *r
	paged.Limit = 500
	return []hotPath{
		{"list of 10,000", 30, list(r)},
		{"list of 10,000, gzip", 41, list(&zipped)},
		{"page of 500", 33, list(&paged)},
	}
}

// Allocations of hot paths do not grow with the size of the result.
func TestAllocationBudgets(t *testing.T) {
	if cachetest.Race {
		t.Skip("make test runs it without the race detector")
	}
	for _, path := range hotPaths(t) {
		path.do()
		if got := testing.AllocsPerRun(50, path.do); got > path.budget {
			t.Errorf("%s: %v allocations, want %v at most", path.name, got, path.budget)
		}
	}
}

func BenchmarkHotPaths(b *testing.B) {
	for _, path := range hotPaths(b) {
		b.Run(path.name, func(b *testing.B) {
			path.do()
			b.ReportAllocs()
			for b.Loop() {
				path.do()
			}
		})
	}
}
