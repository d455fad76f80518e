package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
)

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

// selections returns selections in each writer's namespace and in all namespaces.
func selections(namespaces []string) []selection {
	a, b := namespaces[0], namespaces[1]
	return []selection{
		{configMaps, configMaps.all(), ""},
		{configMaps, configMaps.all(), "labelSelector=app%3Dred"},
		{configMaps, configMaps.all(), "labelSelector=app+notin+(red,green)"},
		{configMaps, configMaps.in(a), ""},
		{configMaps, configMaps.in(b), "labelSelector=app"},
		{configMaps, configMaps.in(b), "fieldSelector=metadata.name!%3Do-1"},
		{configMaps, configMaps.in(a), "fieldSelector=metadata.name%3Do-0"},
		{configMaps, configMaps.all(), "fieldSelector=metadata.name%3Do-0,metadata.namespace%3D" + b},
		{configMaps, configMaps.all(), "fieldSelector=metadata.namespace%3D" + a},
		{pods, pods.all(), ""},
		{pods, pods.in(a), ""},
		{pods, pods.in(b), "labelSelector=!app"},
		{pods, pods.all(), "fieldSelector=spec.nodeName%3Dn1"},
		{pods, pods.all(), "fieldSelector=spec.nodeName%3Dn2&labelSelector=app+in+(red,blue)"},
		{pods, pods.in(a), "fieldSelector=spec.nodeName%3D"},
		{pods, pods.in(b), "fieldSelector=spec.nodeName!%3Dn1"},
		{pods, pods.all(), "fieldSelector=spec.nodeName%3Dn1,metadata.namespace%3D" + a},
		{pods, pods.in(b), "fieldSelector=metadata.name%3Do-0"},
		{pods, pods.all(), "fieldSelector=status.phase!%3DRunning"},
		{pods, pods.in(a), "fieldSelector=status.phase%3DPending,spec.nodeName!%3D"},
	}
}

// start is the point where a watcher starts.
type start int

const (
	fromFirst  start = iota // at the resourceVersion before the first write
	fromRecent              // at the resourceVersion of a recent write
	fromAny                 // with any state
	fromState               // with a state not older than a recent write
	starts
)

// watcher watches one selection through the proxy and records all events.
type watcher struct {
	selection
	start     start
	milestone int  // when the watcher begins
	bookmarks bool // the watcher asks for bookmarks
	leaves    bool // from time to time the watcher ends its watch and resumes
	lifetime  int  // timeoutSeconds, 0 for none
	rand      *rand.Rand
	history   History
	headers   []http.Header // of the responses, by connection
}

// newWatcher returns watcher number i. The number determines the selection and the start;
// everything else is random.
func newWatcher(i int, all []selection, milestones int, seed uint64) *watcher {
	r := rand.New(rand.NewPCG(seed, uint64(1000+i)))
	w := &watcher{
		selection: all[i%len(all)],
		start:     start((i + i/len(all)) % int(starts)),
		milestone: r.IntN(milestones),
		bookmarks: r.IntN(3) > 0,
		leaves:    r.IntN(2) > 0,
		rand:      r,
	}
	if w.start == fromFirst || w.rand.IntN(3) == 0 {
		w.milestone = 0
	}
	if w.bookmarks && w.rand.IntN(3) == 0 {
		w.lifetime = 3
	}
	w.history.Name = fmt.Sprintf("watcher %d, %s, start %d at milestone %d, bookmarks %t, leaves %t, lifetime %d s",
		i, w.target(""), w.start, w.milestone, w.bookmarks, w.leaves, w.lifetime)
	return w
}

// run watches until it has seen all events up to the resourceVersion that it receives from due
// after all writes, or until ctx ends.
func (w *watcher) run(ctx context.Context, first uint64, p *progress, due <-chan uint64) error {
	select {
	case <-p.reached(w.milestone):
	case <-ctx.Done():
		return ctx.Err()
	}
	from, state := first, false
	switch w.start {
	case fromRecent:
		from = p.rv()
	case fromAny:
		from, state = 0, true
	case fromState:
		from, state = p.rv(), true
	}
	var end uint64
	for {
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
