package shards

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// stream is an open watch and its events.
type stream struct {
	resp *http.Response
	mu   struct {
		sync.Mutex
		events []conformance.Event
		err    error
		ended  bool
	}
}

// openT opens a watch. It ends with ctx.
func openT(ctx context.Context, t *testing.T, reading *sync.WaitGroup, e *cluster.Endpoint, r cluster.Request) *stream {
	t.Helper()
	s := &stream{}
	var err error
	if s.resp, err = openPatiently(ctx, e, r); err != nil {
		t.Fatal(err)
	}
	if s.resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(s.resp.Body)
		_ = s.resp.Body.Close()
		t.Fatalf("%s: %.300s: %s %.300s", e.Name, r.Target, s.resp.Status, body)
	}
	reading.Go(func() {
		defer s.resp.Body.Close()
		err := error(nil)
		for e, broken := range conformance.Events(s.resp) {
			if err = broken; err != nil {
				break
			}
			s.mu.Lock()
			s.mu.events = append(s.mu.events, e)
			s.mu.Unlock()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.ended = true; ctx.Err() == nil {
			s.mu.err = err
		}
	})
	return s
}

// has reports whether the stream has events that suffice. It also does so if the stream has ended.
func (s *stream) has(enough func([]conformance.Event) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.ended || enough(s.mu.events)
}

// until returns the events up to a resourceVersion, without bookmarks between changes, which may
// come at any time.
func (s *stream) until(rv uint64) (all []conformance.Event, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.mu.events {
		if e.Type == "BOOKMARK" && !e.InitialEnd {
			continue
		}
		if e.RV > rv {
			break
		}
		all = append(all, e)
	}
	return all, s.mu.err
}

// begins waits for the end of the state.
func (s *stream) begins(t *testing.T) {
	t.Helper()
	cluster.Eventually(t, "the state", func() bool {
		return s.has(func(all []conformance.Event) bool {
			return slices.ContainsFunc(all, func(e conformance.Event) bool { return e.InitialEnd })
		})
	})
}

// reaches waits for an event with a resourceVersion, or a later one.
func (s *stream) reaches(t *testing.T, rv uint64) {
	t.Helper()
	cluster.Eventually(t, "the last event", func() bool {
		return s.has(func(all []conformance.Event) bool { return len(all) > 0 && all[len(all)-1].RV >= rv })
	})
}

// watch is a watch that all ways are asked for.
type watch struct {
	shard   shard
	request cluster.Request
	last    uint64             // resourceVersion of the last event
	streams map[string]*stream // by way, and of both apiservers
	states  map[string]int     // numbers of objects with which they begin
}

func (h *watch) String() string {
	return fmt.Sprintf("%s (%s)", h.request.Target, h.request.Header.Get("Accept"))
}

// Watches show the events that the apiserver shows, in the same order. So do watches that begin
// with a state.
func TestWatches(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	for _, r := range resources {
		t.Run(r.Resource, func(t *testing.T) {
			t.Parallel()
			w.compareWatches(t, r)
		})
	}
}

func (w *world) compareWatches(t *testing.T, r resource) {
	t.Helper()
	random := rand.New(rand.NewPCG(cluster.Seed(), hashOf(r.Resource)))
	s := w.newScript(t, r, random)
	before := w.versionT(t)
	for range 30 {
		s.change()
	}
	w.settle(t)
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	const watches = 12
	var open []*watch
	for len(open) < watches {
		open = append(open, w.drawWatch(ctx, t, &reading, s, before))
	}
	for _, h := range open {
		for name, stream := range h.streams {
			cluster.Eventually(t, "the state of "+h.String(), func() bool {
				return stream.has(func(all []conformance.Event) bool { return len(all) >= h.states[name] })
			})
		}
	}
	for range 40 {
		s.change()
	}
	s.end(open)
	var sources tally
	shown := 0
	for _, h := range open {
		for _, stream := range h.streams {
			stream.reaches(t, h.last)
		}
		for _, y := range w.ways() {
			n, err := sameEvents(h.streams[y.reference.URL], h.streams[y.name], h.last)
			if shown += n; err != nil {
				t.Errorf("%s: %s: %v", y.name, h, err)
			}
		}
	}
	cancel()
	reading.Wait()
	for _, h := range open {
		for _, y := range w.ways() {
			sources.add(y, h.streams[y.name].resp.Header, h.String(), true)
		}
	}
	sources.check(t)
	t.Logf("%d events", shown)
	if shown < watches*10 {
		t.Error("these are too few: the test does not test")
	}
}

// sameEvents compares events with those of the reference, and returns their number.
func sameEvents(reference, stream *stream, last uint64) (int, error) {
	want, err := reference.until(last)
	if err != nil {
		return 0, fmt.Errorf("the apiserver's watch: %w", err)
	}
	got, err := stream.until(last)
	if err != nil {
		return 0, err
	}
	for i := range max(len(want), len(got)) {
		switch {
		case i == len(want):
			return 0, fmt.Errorf("the %d. event is too much: %s", i+1, got[i])
		case i == len(got):
			return 0, fmt.Errorf("the %d. event is missing: %s", i+1, want[i])
		}
		if w, g := conformance.Settled(want[i]), conformance.Settled(got[i]); !bytes.Equal(w, g) {
			return 0, fmt.Errorf("the %d. event is %s instead of %s\nwant %.600q\ngot  %.600q", i+1, got[i], want[i], w, g)
		}
	}
	return len(got), nil
}

// drawWatch opens a watch each way, whose selectors select some of the script's objects.
func (w *world) drawWatch(ctx context.Context, t *testing.T, reading *sync.WaitGroup, s *script, before string) *watch {
	t.Helper()
	random := s.random
	oneOf := func(all ...string) string { return all[random.IntN(len(all))] }
	h := &watch{streams: map[string]*stream{}, states: map[string]int{}}
	for !s.follows(h) {
		h.shard = drawShard(random, s.uids(), s.namespaces)
	}
	query := []string{"watch=" + oneOf("true", "1"), parameter(random, h.shard.text)}
	add := func(name, value string) { query = append(query, name+"="+url.QueryEscape(value)) }
	add("labelSelector", "of="+s.name+oneOf("", "", ",color=red", ",color!=blue", ",color in (red,green)"))
	if s.of.field != "" && random.IntN(4) == 0 {
		add("fieldSelector", s.of.field+oneOf("=red", "!=blue"))
	}
	listed, state := strings.Join(query[1:], "&"), true
	switch random.IntN(5) {
	case 0:
		add("resourceVersion", before)
		state = false
		if random.IntN(2) == 0 {
			add("allowWatchBookmarks", "true")
		}
	case 1:
		add("resourceVersion", "0")
	case 2: // the most recent state
	case 3:
		add("resourceVersion", "0")
		add("allowWatchBookmarks", "true")
		add("sendInitialEvents", "true")
		add("resourceVersionMatch", "NotOlderThan")
	case 4:
		add("allowWatchBookmarks", "true")
		add("sendInitialEvents", "true")
		add("resourceVersionMatch", "NotOlderThan")
	}
	path := s.of.path("")
	if random.IntN(4) == 0 && !h.shard.byNamespace {
		path = s.of.path(s.namespaces[0])
	}
	asTable, asPartial := strings.TrimSuffix(asTable, ",application/json"), strings.Replace(asPartial, "MetadataList", "Metadata", 1)
	h.request = cluster.Get(path+"?"+strings.Join(query, "&")).With("Accept", oneOf(inJSON, inJSON, inProtobuf, inProtobuf, asPartial, asTable))
	open := func(name string, reference, e *cluster.Endpoint, r cluster.Request) {
		if state { // it must have come before anything changes
			list := mustT(t, reference, as(direct, cluster.Get(path+"?"+listed))).Body
			h.states[name] = int(gjson.GetBytes(list, "items.#").Int())
		}
		h.streams[name] = openT(ctx, t, reading, e, r)
	}
	for _, e := range []*cluster.Endpoint{w.on.api, w.off.api} {
		open(e.URL, e, e, as(direct, h.request))
	}
	for _, y := range w.ways() {
		open(y.name, y.reference, y.to.proxy, y.request(h.request))
	}
	return h
}
