package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// watchers is the number of watchers. They begin in waves, each before a round of the scripts.
const watchers = 50

var rounds = cachetest.Rounds(6, 20)

// scripted are the collections that the scripts write.
var scripted = []*collection{configMaps, pods}

// mark writes to these collections, and returns the resourceVersions.
func mark(t *testing.T) (at []uint64) {
	t.Helper()
	for _, c := range scripted {
		o := object{of: c, namespace: "default", name: cluster.UniqueName("marker")}
		if c == pods {
			o.fields = podSpec("n3")
		}
		at = append(at, o.createT(t))
	}
	return at
}

// While scripts run at once, every watcher through the proxy receives exactly the events of the
// apiserver's own watch of the same selection, over all its connections.
func TestWatchersSeeEverythingOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*cluster.Limit)
	defer cancel()
	var scripts []*script
	for i := range 4 {
		scripts = append(scripts, newScript(t, scripted[i%2]))
	}
	all := selections(scripts)
	mark(t) // the apiserver's history begins with the oldest event that it keeps
	first, refs := references(t, ctx, all)
	var crowd []*watcher
	due := make([]chan uint64, watchers)
	errs := make([]error, watchers)
	var watching sync.WaitGroup
	recent := []uint64{first, first}
	for round := range rounds {
		for i := round; i < watchers; i += rounds {
			w := newWatcher(i, all)
			w.first, w.recent = first, recent[slices.Index(scripted, w.of)]
			crowd, due[i] = append(crowd, w), make(chan uint64, 1)
			watching.Go(func() { errs[i] = w.run(ctx, due[i]) })
		}
		recent = mark(t)
		err := workload.Parallel(ctx, len(scripts), len(scripts), func(ctx context.Context, i int) error {
			if round > 0 {
				s := scripts[i]
				for _, o := range append(s.last(), s.object(s.home, s.first+"-2", "", "")) {
					if err := o.remove(ctx); err != nil {
						return err
					}
				}
			}
			return scripts[i].run(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	replay(t, ctx, all, refs)
	for i, ref := range refs {
		if ref.End() <= recent[0] {
			t.Fatalf("nothing of the last writes matches %v", all[i])
		}
	}
	for i := range watchers {
		due[i] <- refs[i%len(all)].End()
	}
	watching.Wait()

	connections := 0
	for _, w := range crowd {
		if errs[w.number] != nil {
			t.Errorf("%s: %v", w.history.Name, errs[w.number])
		}
		report(t, &w.history, Check(refs[w.number%len(all)], &w.history))
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
	first := slices.Max(mark(t))
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
	for i, rv := range mark(t) {
		end[scripted[i]] = rv
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

// selection is the selection of a watcher.
type selection struct {
	of       *collection
	path     string
	selector string // a part of the query
}

func (s selection) target(query string) string {
	target := s.path + "?watch=true&" + query
	if s.selector != "" {
		target += "&" + s.selector
	}
	return target
}

// selections returns selections in the scripts' namespaces and in all namespaces.
func selections(scripts []*script) []selection {
	maps, podsOf, others := scripts[0], scripts[1], scripts[3]
	return []selection{
		{configMaps, configMaps.all(), ""},
		{configMaps, configMaps.all(), "labelSelector=app%3Dweb"},
		{configMaps, configMaps.all(), "labelSelector=app+notin+(web,red)"},
		{configMaps, configMaps.in(maps.home), ""},
		{configMaps, configMaps.in(maps.home), "labelSelector=app"},
		{configMaps, configMaps.in(maps.home), "fieldSelector=metadata.name!%3Dnobody"},
		{configMaps, configMaps.in(maps.home), "fieldSelector=metadata.name%3D" + maps.first},
		{configMaps, configMaps.all(), "fieldSelector=metadata.namespace%3D" + maps.home + ",metadata.name%3D" + maps.first},
		{configMaps, configMaps.all(), "fieldSelector=metadata.namespace%3D" + maps.elsewhere},
		{pods, pods.all(), ""},
		{pods, pods.in(podsOf.home), ""},
		{pods, pods.in(podsOf.home), "labelSelector=!app"},
		{pods, pods.all(), "fieldSelector=spec.nodeName%3Dn1"},
		{pods, pods.all(), "fieldSelector=spec.nodeName%3Dn2&labelSelector=app+in+(web,db)"},
		{pods, pods.in(podsOf.home), "fieldSelector=spec.nodeName%3D"},
		{pods, pods.in(others.home), "fieldSelector=spec.nodeName!%3Dn2"},
		{pods, pods.all(), "fieldSelector=spec.nodeName%3Dn1,metadata.namespace%3D" + others.home},
		{pods, pods.in(others.home), "fieldSelector=metadata.name%3D" + others.first},
		{pods, pods.all(), "fieldSelector=status.phase!%3DRunning"},
		{pods, pods.in(podsOf.home), "fieldSelector=status.phase%3DPending,spec.nodeName!%3D"},
	}
}

// watcher watches one selection through the proxy and records all events.
type watcher struct {
	selection
	number        int
	first, recent uint64 // resourceVersions before the first write, and before the watcher's round
	bookmarks     bool   // the watcher asks for bookmarks
	leaves        bool   // from time to time the watcher ends its watch and resumes
	lifetime      int    // timeoutSeconds, 0 for none
	rand          *rand.Rand
	history       History
	headers       []http.Header // of the responses, by connection
}

// newWatcher returns watcher number i. The number determines the selection and the start;
// everything else is random.
func newWatcher(i int, all []selection) *watcher {
	r := rand.New(rand.NewPCG(cluster.Seed(), uint64(1000+i)))
	w := &watcher{selection: all[i%len(all)], number: i, bookmarks: r.IntN(3) > 0, leaves: r.IntN(2) > 0, rand: r}
	if w.bookmarks && r.IntN(3) == 0 {
		w.lifetime = 3
	}
	w.history.Name = fmt.Sprintf("watcher %d, %s, bookmarks %t, leaves %t, lifetime %d s", i, w.target(""), w.bookmarks, w.leaves, w.lifetime)
	return w
}

// run watches until it has seen all events up to the resourceVersion that it receives from due
// after all writes, or until ctx ends. It begins at the first or at a recent resourceVersion, with any
// state, or with a recent one.
func (w *watcher) run(ctx context.Context, due <-chan uint64) error {
	starts := []struct {
		from  uint64
		state bool
	}{{w.first, false}, {w.recent, false}, {0, true}, {w.recent, true}}
	begin := starts[(w.number+w.number/20)%len(starts)]
	var end uint64
	for from, state := begin.from, begin.state; ; {
		done, err := w.connect(ctx, from, state, &end, due)
		if done || err != nil {
			return err
		}
		from, state = w.history.Connections[len(w.history.Connections)-1].Last(), false
	}
}

// query returns the query for one connection.
func (w *watcher) query(from uint64, state bool) string {
	q := []string{fmt.Sprintf("resourceVersion=%d", from)}
	if state && from > 0 {
		q = append(q, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	}
	if w.bookmarks {
		q = append(q, "allowWatchBookmarks=true")
	}
	if w.lifetime > 0 {
		q = append(q, fmt.Sprintf("timeoutSeconds=%d", w.lifetime))
	}
	return strings.Join(q, "&")
}

// connect opens one connection and records its events. It returns when the watch ends, the watcher
// leaves, or all events up to end have arrived. end is set once due has sent it.
func (w *watcher) connect(ctx context.Context, from uint64, state bool, end *uint64, due <-chan uint64) (done bool, err error) {
	s, err := openStream(ctx, proxied, get(w.target(w.query(from, state))))
	if err != nil {
		return false, err
	}
	defer s.close()
	w.headers = append(w.headers, s.header)
	w.history.Connections = append(w.history.Connections, Connection{From: from, State: state})
	conn := &w.history.Connections[len(w.history.Connections)-1]
	position, inState := from, state
	for {
		if *end > 0 && position >= *end {
			return true, nil
		}
		select {
		case *end = <-due:
			due = nil
		case e, open := <-s.lines:
			if !open {
				return false, s.err
			}
			conn.Events = append(conn.Events, e)
			inState = inState && !e.InitialEnd
			position = max(position, e.RV)
			// The watcher can resume only after the bookmark that ends the state.
			if w.leaves && !inState && w.rand.IntN(40) == 0 {
				return false, nil
			}
		case <-ctx.Done():
			return false, fmt.Errorf("still at %d of %d: %w", position, *end, ctx.Err())
		}
	}
}
