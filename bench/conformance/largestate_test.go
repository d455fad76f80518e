package conformance

import (
	"context"
	"fmt"
	"testing"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// The proxy begins to write a large state before it has proved that the state is up to date. The
// client must see no difference: the state, its end, and later events equal the apiserver's.
func TestLargeState(t *testing.T) {
	const objects = 700
	c := accounts
	home := newNamespaces(t, "large", 1)[0]
	if err := createMany(t.Context(), objects, func(i int) object {
		return object{of: c, namespace: home, name: fmt.Sprintf("sa-%03d", i)}
	}); err != nil {
		t.Fatal(err)
	}
	must(t, proxied, get(c.all()+"?resourceVersion=0&limit=1"), 200)
	var open []*pair
	for _, query := range []string{
		"allowWatchBookmarks=true",
		"allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"allowWatchBookmarks=true&fieldSelector=metadata.name%3Dsa-600",
		"allowWatchBookmarks=true&labelSelector=nobody",
	} {
		elsewhere(t) // otherwise there is nothing to prove
		p := openPair(t, query, get(c.in(home)+"?watch=true&"+query), cache)
		open = append(open, p)
	}
	isEnd := func(e Event) bool { return e.InitialEnd }
	for _, p := range open[:2] {
		if n := p.compare(t, isEnd); n != objects+1 { // the objects and the end of the state
			t.Errorf("%s: a state of %d events", p.name, n)
		}
	}
	last := object{of: c, namespace: home, name: "sa-last", meta: map[string]any{"annotations": map[string]string{fence: home}}}
	last.createT(t)
	for _, p := range open[:3] {
		p.compare(t, fenced(home))
	}
	for _, p := range open[3:] {
		p.compare(t, isEnd)
	}
}

// createMany creates n objects, a few at a time.
func createMany(ctx context.Context, n int, nth func(i int) object) error {
	const atATime = 8
	return workload.Parallel(ctx, n, atATime, func(ctx context.Context, i int) error { return created(nth(i).create(ctx)) })
}
