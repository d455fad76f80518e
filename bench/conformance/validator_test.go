package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

const (
	writers  = 4
	watchers = 50
)

// writes is the number of all writes.
var writes = cachetest.Rounds(600, 2000)

// Under random writes, every watcher through the proxy receives exactly the events of the
// apiserver's own watch of the same selection.
func TestWatchersSeeEverythingOnce(t *testing.T) {
	seed := cluster.Seed()
	ctx, cancel := context.WithTimeout(t.Context(), 2*cluster.Limit)
	defer cancel()

	homes := newNamespaces(t, "writer", writers)
	all := selections(homes)
	// The apiserver's history begins with the oldest event that it keeps. That event must be older
	// than the first write of the test.
	for _, o := range []object{
		{of: configMaps, namespace: "default", name: cluster.UniqueName("anchor")},
		{of: pods, namespace: "default", name: cluster.UniqueName("anchor"), fields: podSpec("n3")},
	} {
		o.createT(t)
	}
	first, refs := references(t, ctx, all)

	p := newProgress(writes)
	p.wrote(first)
	var crowd []*watcher
	due := make([]chan uint64, watchers)
	errs := make([]error, watchers)
	var watching sync.WaitGroup
	for i := range watchers {
		w := newWatcher(i, all, writes/milestone*3/4, seed)
		crowd, due[i] = append(crowd, w), make(chan uint64, 1)
		watching.Go(func() { errs[i] = w.run(ctx, first, p, due[i]) })
	}
	closing := writeAtRandom(t, ctx, homes, seed, p)
	replay(t, ctx, all, refs)
	for i, ref := range refs {
		if ref.End() <= closing {
			t.Fatalf("nothing of the last writes matches %v", all[i])
		}
	}
	for i := range crowd {
		due[i] <- refs[i%len(all)].End()
	}
	watching.Wait()

	connections := 0
	for i, w := range crowd {
		if errs[i] != nil {
			t.Errorf("%s: %v", w.history.Name, errs[i])
		}
		report(t, &w.history, Check(refs[i%len(all)], &w.history))
		connections += len(w.history.Connections)
		for i := range w.history.Connections {
			if err := cache.check(ctx, answers, w.headers[i]); err != nil {
				t.Errorf("%s: %v", w.history.Name, err)
			}
		}
	}
	if connections == watchers {
		t.Error("the run proves too little: no watcher has resumed")
	}
}

func report(t *testing.T, h *History, found []Violation) {
	t.Helper()
	const shown = 5
	for i, v := range found {
		if i == shown {
			t.Errorf("%s: %d violations more", h.Name, len(found)-shown)
			return
		}
		t.Errorf("%s: %v", h.Name, v)
	}
}

// references reads the initial state of each selection, and also returns its resourceVersion. The
// proxy's caches have then reached this resourceVersion, too. Otherwise a watch from any state could
// begin earlier, with events before the references.
func references(t *testing.T, ctx context.Context, all []selection) (uint64, []*Reference) {
	t.Helper()
	marker := object{of: configMaps, namespace: "default", name: cluster.UniqueName("marker")}
	first := marker.createT(t)
	refs := make([]*Reference, len(all))
	for i, s := range all {
		query := fmt.Sprintf("resourceVersion=%d&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", first)
		var events []Event
		for _, e := range []*cluster.Endpoint{proxied, apiserver} {
			var err error
			if events, err = readTo(history(t, ctx, e, s.target(query)), func(e Event) bool { return e.InitialEnd }); err != nil {
				t.Fatal(err)
			}
		}
		refs[i] = &Reference{Since: first, State: events[:len(events)-1]}
	}
	return first, refs
}

// replay reads the whole history of each selection from the apiserver.
func replay(t *testing.T, ctx context.Context, all []selection, refs []*Reference) {
	t.Helper()
	// A short watch soon gets a bookmark, which proves that no event is missing up to that point. On
	// a busy machine, the watch may end before that.
	for seconds := 4; ; seconds *= 2 {
		err := replayed(t, ctx, all, refs, seconds)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// replayed reads the histories in watches that last for the given time.
func replayed(t *testing.T, ctx context.Context, all []selection, refs []*Reference, seconds int) error {
	t.Helper()
	open := make([]*stream, len(all))
	for i, s := range all {
		open[i] = history(t, ctx, apiserver, s.target(fmt.Sprintf("resourceVersion=%d&allowWatchBookmarks=true&timeoutSeconds=%d", refs[i].Since, seconds)))
	}
	// The bookmark is only useful if the collection is written again after the apiserver's replay
	// has ended.
	end := map[*collection]uint64{}
	for _, o := range []object{
		{of: configMaps, namespace: "default", name: cluster.UniqueName("end")},
		{of: pods, namespace: "default", name: cluster.UniqueName("end"), fields: podSpec("n3")},
	} {
		end[o.of] = o.createT(t)
	}
	// Read all watches concurrently, because the apiserver disconnects slow clients.
	return workload.Parallel(ctx, len(all), len(all), func(_ context.Context, i int) error {
		events, err := readTo(open[i], func(e Event) bool { return e.RV >= end[all[i].of] })
		refs[i].Events = slices.DeleteFunc(events, func(e Event) bool { return e.Type == "BOOKMARK" })
		return err
	})
}

func history(t *testing.T, ctx context.Context, from *cluster.Endpoint, target string) *stream {
	t.Helper()
	s, err := openStream(ctx, from, get(target))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// readTo reads a watch up to the last event.
func readTo(s *stream, last func(Event) bool) ([]Event, error) {
	defer s.close()
	events, err := s.until(last)
	if err != nil || len(events) == 0 || !last(events[len(events)-1]) {
		if n := len(events); n > 0 {
			err = errors.Join(err, fmt.Errorf("the last is %.300s", events[n-1].Line))
		}
		return nil, fmt.Errorf("the watch is not complete after %d events: %w", len(events), err)
	}
	return events, nil
}

// writeAtRandom returns after all writes. The result is the resourceVersion before the closing
// writes. Every selection contains some of the closing writes.
func writeAtRandom(t *testing.T, ctx context.Context, homes []string, seed uint64, p *progress) (closing uint64) {
	t.Helper()
	var crowd []*writer
	each := func(f func(*writer) error) {
		if err := workload.Parallel(ctx, len(crowd), len(crowd), func(_ context.Context, i int) error { return f(crowd[i]) }); err != nil {
			t.Fatal(err)
		}
	}
	for i, home := range homes {
		crowd = append(crowd, newWriter(home, seed, uint64(i), p))
	}
	each(func(w *writer) error { return w.run(ctx, writes/len(homes)) })
	closing = p.rv()
	each(func(w *writer) error { return w.close(ctx) })
	return closing
}
