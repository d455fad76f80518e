package shards

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// cutting are views that select shards and cut objects, and views that only cut the same fields.
var cutting = map[string]string{"labels": "unsharded", "small": "unsharded-small"}

// itemsT reads a list with all its pages. It returns the objects, and the selector that the list
// shows.
func itemsT(t *testing.T, e *cluster.Endpoint, r cluster.Request) (items []gjson.Result, selector string) {
	t.Helper()
	pages, err := pagesOf(t.Context(), e, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if page.Status != 200 {
			t.Fatalf("%s: %s: %d %.300s", e.Name, r.Target, page.Status, page.Body)
		}
		items = append(items, gjson.GetBytes(page.Body, "items").Array()...)
		selector = gjson.GetBytes(page.Body, "metadata.shardInfo.selector").Str
	}
	return items, selector
}

// in returns the objects of a shard, as JSON.
func (s shard) in(items []gjson.Result) (all []string) {
	for _, o := range items {
		if s.has(o.Get("metadata.uid").Str, o.Get("metadata.namespace").Str) {
			all = append(all, o.Raw)
		}
	}
	return all
}

func raw(items []gjson.Result) (all []string) {
	for _, o := range items {
		all = append(all, o.Raw)
	}
	return all
}

// differs returns the first difference between two lists of objects or events.
func differs(want, got []string) error {
	for i := range max(len(want), len(got)) {
		switch {
		case i == len(want):
			return fmt.Errorf("%.200s is too much, of %d instead of %d", got[i], len(got), len(want))
		case i == len(got):
			return fmt.Errorf("%.200s is missing, of %d there are %d", want[i], len(want), len(got))
		case want[i] != got[i]:
			return fmt.Errorf("%d: want %.600s\n got %.600s", i, want[i], got[i])
		}
	}
	return nil
}

// A view that also cuts objects shows the cut objects of the shard.
func TestCut(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	random := rand.New(rand.NewPCG(cluster.Seed(), 3))
	const rounds = 10
	for sharded, unsharded := range cutting {
		for _, r := range resources {
			target := r.path("") + "?labelSelector=of%3Dseed"
			whole, _ := itemsT(t, w.off.proxy, below(unsharded, cluster.Get(target)))
			for range rounds {
				s := drawShard(random, w.seeded.uids[r.Resource], w.seeded.namespaces)
				query := "&" + parameter(random, s.text) + []string{"", "&limit=30", "&resourceVersion=0"}[random.IntN(3)]
				got, selector := itemsT(t, w.off.proxy, below(sharded, cluster.Get(target+query)))
				if err := differs(s.in(whole), raw(got)); err != nil {
					t.Errorf("%s: %s%s: %v", sharded, target, query, err)
				}
				if _, want := itemsT(t, w.on.api, as(direct, cluster.Get(target+query))); selector != want {
					t.Errorf("%s: %s%s: the selector is %q instead of %q", sharded, target, query, selector, want)
				}
			}
		}
	}
}

// A watch in such a view shows the cut events of the shard.
func TestCutWatch(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	random := rand.New(rand.NewPCG(cluster.Seed(), 4))
	s := w.newScript(t, widgets, random)
	for range 20 {
		s.change()
	}
	w.settle(t)
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	target := widgets.path("") + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=of%3D" + s.name
	wholes, parts := map[string]*stream{}, map[string][]*stream{}
	var ends []*watch
	for sharded, unsharded := range cutting {
		wholes[sharded] = openT(ctx, t, &reading, w.off.proxy, below(unsharded, cluster.Get(target)))
		wholes[sharded].begins(t)
		for _, second := range []bool{false, true} {
			h := &watch{shard: comb(second)}
			part := openT(ctx, t, &reading, w.off.proxy, below(sharded, cluster.Get(target+"&"+parameter(random, h.shard.text))))
			part.begins(t)
			parts[sharded], ends = append(parts[sharded], part), append(ends, h)
		}
	}
	for range 60 {
		s.change()
	}
	s.end(ends)
	shown := 0
	for sharded, whole := range wholes {
		for i, part := range parts[sharded] {
			h := ends[i]
			whole.reaches(t, h.last)
			part.reaches(t, h.last)
			want, got := linesOf(t, whole, h.shard, h.last), linesOf(t, part, everything, h.last)
			if err := differs(want, got); err != nil {
				t.Errorf("%s: %s: %v", sharded, h.shard.text, err)
			}
			shown += len(got)
		}
	}
	t.Logf("%d events", shown)
	const least = 50
	if shown < least {
		t.Error("these are too few: the test does not test")
	}
}

var everything = share(0, 1)

// linesOf returns the events about objects of a shard, up to a resourceVersion.
func linesOf(t *testing.T, s *stream, of shard, last uint64) (lines []string) {
	t.Helper()
	events, err := s.until(last)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Type != "BOOKMARK" && of.has(gjson.GetBytes(e.Line, "object.metadata.uid").Str, "") {
			lines = append(lines, string(e.Line))
		}
	}
	return lines
}

// A view with resources cuts objects of these, and selects shards of all.
func TestResources(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	half := parameter(rand.New(rand.NewPCG(cluster.Seed(), 5)), share(0, 2).text)
	for _, r := range resources {
		for _, query := range []string{"", "&resourceVersion=0", "&limit=9", "&fieldSelector=metadata.name%3Dseed-1"} {
			request := cluster.Get(r.path("") + "?labelSelector=of%3Dseed&" + half + query)
			reference, of := w.on.api, as(direct, request)
			if r == configmaps {
				reference, of = w.off.proxy, below("labels", request)
			}
			want, err := pagesOf(t.Context(), reference, of)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pagesOf(t.Context(), w.off.proxy, below("configs", request))
			if err != nil {
				t.Fatal(err)
			}
			if err := samePages(want, got); err != nil {
				t.Errorf("%s: %v", request.Target, err)
			}
		}
	}
}
