package proxy

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// hotPath is something that is done often, and how many allocations it may make.
type hotPath struct {
	name   string
	budget float64
	do     func()
}

// hotPaths are reads of a collection of 10,000 objects that have been made before.
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
			if _, err := resp.WriteList(io.Discard); err != nil {
				tb.Fatal(err)
			}
		}
	}
	zipped := *r
	zipped.Request = &exchange.Request{Header: map[string][]string{"Accept-Encoding": {"gzip"}}}
	paged := *r
	paged.limit = 500
	return []hotPath{
		{"list of 10,000", 30, list(r)},
		{"list of 10,000, gzip", 41, list(&zipped)},
		{"page of 500", 33, list(&paged)},
	}
}

// event is one event on its way to one watch, a thousand times.
func event(tb testing.TB) func() {
	tb.Helper()
	r, _ := pageOf(tb, 1, 0)
	const ahead = 1000
	r.cache = watchcache.New(*r.resource, watchcache.Limits{Age: time.Hour, Events: 2 * ahead, Bytes: 1 << 24})
	r.cache.Reset(nil, 1)
	initial, err := r.cache.Snapshot()
	if err != nil {
		tb.Fatal(err)
	}
	cursor, err := r.cache.WatchAfter(r.filter, initial)
	if err != nil {
		tb.Fatal(err)
	}
	w := &watching{read: r, cursor: cursor, draining: context.Background(), done: func() {}}
	out := &exchange.ChunkWriter{To: io.Discard}
	if !w.open(tb.Context(), out) {
		tb.Fatal("it does not begin")
	}
	tb.Cleanup(w.close)
	changes := make([]watchcache.Change, ahead)
	for i := range changes {
		changes[i].Object, err = r.resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"c-000000","namespace":"a","uid":"u","resourceVersion":"%d"}}`, i+10))
		if err != nil {
			tb.Fatal(err)
		}
	}
	// All but the delivery is done before.
	if err := r.cache.Apply(changes, time.Now()); err != nil {
		tb.Fatal(err)
	}
	var one [1]watchcache.Delta
	return func() {
		polled, _, err := w.cursor.Poll(one[:0], 1)
		if err != nil {
			tb.Fatal(err)
		}
		for i := range polled {
			if err := w.append(out, &polled[i]); err != nil {
				tb.Fatal(err)
			}
		}
		if err := out.Flush(); err != nil {
			tb.Fatal(err)
		}
	}
}

// Hot paths make no garbage that grows with what they read.
func TestAllocationBudgets(t *testing.T) {
	if raceEnabled {
		t.Skip("make test runs it without the race detector")
	}
	for _, path := range append(hotPaths(t), hotPath{"event", 0, event(t)}) {
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
