package conformance

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
)

// A large state is written while the proxy still finds out how recent it is. The client must not notice: the state, its
// end, and what follows are the apiserver's.
func TestLargeState(t *testing.T) {
	const objects = 700
	c := &collection{name: "serviceaccounts", root: "/api/v1", resource: "serviceaccounts", kind: "ServiceAccount", namespaced: true}
	home := newNamespaces(t, "large", 1)[0]
	if err := createMany(t.Context(), objects, func(i int) object {
		return object{of: c, namespace: home, name: fmt.Sprintf("sa-%03d", i)}
	}); err != nil {
		t.Fatal(err)
	}
	proxied.must(t, get(c.all()+"?resourceVersion=0&limit=1"), 200)
	var open []*pair
	for _, query := range []string{
		"allowWatchBookmarks=true",
		"allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"allowWatchBookmarks=true&fieldSelector=metadata.name%3Dsa-600",
		"allowWatchBookmarks=true&labelSelector=nobody",
	} {
		elsewhere(t) // or there is nothing to find out
		p := openPair(t, query, get(c.in(home)+"?watch=true&"+query), cache)
		open = append(open, p)
	}
	isEnd := func(e Event) bool { return e.InitialEnd }
	for _, p := range open[:2] {
		if n := p.same(t, isEnd); n != objects+1 { // and the end
			t.Errorf("%s: a state of %d events", p.name, n)
		}
	}
	last := object{of: c, namespace: home, name: "sa-last", meta: map[string]any{"annotations": map[string]string{fence: home}}}
	if _, err := last.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range open[:3] {
		p.same(t, fenced(home))
	}
	for _, p := range open[3:] {
		p.same(t, isEnd)
	}
}

// same reads both watches up to an event and compares what came. It returns how many events those were.
func (p *pair) same(t *testing.T, last func(Event) bool) int {
	t.Helper()
	want, err := p.want.until(last)
	if err != nil {
		t.Fatalf("%s: the apiserver's watch: %v", p.name, err)
	}
	got, err := p.got.until(last)
	if err != nil {
		t.Fatalf("%s: the proxy's watch: %v", p.name, err)
	}
	want, got = withoutBookmarks(t, want), withoutBookmarks(t, got)
	if len(want) != len(got) {
		t.Fatalf("%s: %d events instead of %d", p.name, len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(settled(got[i]), settled(want[i])) {
			t.Fatalf("%s: event %d differs\n%s", p.name, i, excerpts(want[i].Line, got[i].Line))
		}
	}
	return len(want)
}

// createMany creates objects, some at a time.
func createMany(ctx context.Context, n int, nth func(i int) object) error {
	const workers = 8
	errs := make(chan error, workers)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < n; i += workers {
				if _, err := nth(i).create(ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}
