package views

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// A watch in a view has the events of the same watch without the view, with cut objects. Changes
// that do not change what stays are left out, except by upstream.
func TestWatches(t *testing.T) {
	w := sharedWorld(t)
	namespace := cluster.UniqueName("watched")
	if err := w.createNamespace(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	var hidden, shown counter
	t.Run("resources", func(t *testing.T) {
		for _, r := range w.all {
			if len(r.specimens) > 0 && r.plural != "servicecidrs" && r.plural != "ipaddresses" { // whose names are addresses
				t.Run(r.name(), func(t *testing.T) {
					t.Parallel()
					w.checkWatches(t, r, namespace, &hidden, &shown)
				})
			}
		}
	})
	t.Logf("%d changes were shown, and %d left out", shown.n, hidden.n)
	const least = 200
	if shown.n < least || hidden.n < least {
		t.Error("these are too few: the test does not test")
	}
	w.sources.check(t)
}

type counter struct {
	sync.Mutex
	n int
}

func (c *counter) add(n int) {
	c.Lock()
	defer c.Unlock()
	c.n += n
}

func (w *world) checkWatches(t *testing.T, r *resource, namespace string, hidden, shown *counter) {
	t.Helper()
	random := rand.New(rand.NewPCG(cluster.Seed(), seedOf(r.name()+" watches")))
	s := &script{w: w, r: r, namespace: namespace, random: random, prefix: cluster.UniqueName("w")}
	for range 2 {
		if err := s.create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// These are the watches without a view: of all objects of the script, and of picked ones.
	wholes := []*watcher{}
	for _, selector := range []string{watched, watched + ",pick=yes"} {
		wholes = append(wholes, &watcher{selector: selector})
	}
	var viewed []*watcher
	const drawn = 2 // besides the two that are not drawn
	for i, v := range append(slices.Clone(r.views[viewsEach:]), drawFew(r.views[:viewsEach], drawn, random)...) {
		of := &watcher{view: v, whole: wholes[random.IntN(len(wholes))]}
		of.selector, of.gzip, of.forwarded = of.whole.selector, random.IntN(4) == 0, i == drawn+1 && random.IntN(3) == 0
		viewed = append(viewed, of)
	}
	viewed = append(viewed, &watcher{view: r.views[random.IntN(len(r.views))], selector: watched, whole: wholes[0], accept: protobuf, gzip: random.IntN(2) == 0})
	// A third of the resources have one more watch, in another form.
	if form := random.IntN(6); form < 2 && r.plural != "deployments" { // whose metadata upstream makes
		accept := []string{partial, table}[form]
		whole := &watcher{selector: watched, accept: accept}
		wholes = append(wholes, whole)
		viewed = append(viewed, &watcher{view: r.views[random.IntN(len(r.views))], selector: watched, whole: whole, accept: accept, gzip: random.IntN(2) == 0})
	}
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	// The watches without a view begin first, so that no other watch begins at an older state.
	all := slices.Concat(wholes, viewed)
	for _, of := range all {
		if of.view != nil {
			if err := of.whole.await(ctx, of.whole.synced); err != nil {
				t.Fatalf("%s: the state did not come: %v", of.whole, err)
			}
		}
		if err := of.open(ctx, w, s); err != nil {
			t.Fatal(err)
		}
		reading.Go(func() { of.read(ctx, s.last()) })
	}
	for _, of := range all {
		if err := of.await(ctx, of.synced); err != nil {
			t.Fatalf("%s: the state did not come: %v", of, err)
		}
	}
	const changes = 14
	for range changes {
		if err := s.change(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.createNamed(t.Context(), s.last()); err != nil {
		t.Fatal(err)
	}
	for _, of := range all {
		if err := of.await(ctx, of.done); err != nil || of.err != nil {
			t.Fatalf("%s: the last object did not come: %v", of, errors.Join(err, of.err))
		}
	}
	cancel()
	reading.Wait()
	for _, of := range all {
		if of.view != nil {
			of.source = w.sources.OfT(t, of.resp.Header)
			of.check(t, hidden, shown)
		}
	}
}

func drawFew(all []*view, n int, random *rand.Rand) (drawn []*view) {
	for _, i := range random.Perm(len(all))[:n] {
		drawn = append(drawn, all[i])
	}
	return drawn
}

// watcher is a watch and its events. The fields err and events are valid once done is closed.
type watcher struct {
	view      *view    // nil for none
	whole     *watcher // the same watch without the view
	selector  string
	accept    string // empty for none
	gzip      bool
	forwarded bool

	resp         *http.Response
	source       string
	synced, done chan struct{} // closed after the state, and after the last event
	events       []conformance.Event
	err          error
}

func (of *watcher) String() string {
	name := "the watch of " + of.selector
	if of.view != nil {
		name += " in " + of.view.String()
	}
	return fmt.Sprintf("%s (Accept %q, gzip %t, forwarded %t)", name, of.accept, of.gzip, of.forwarded)
}

// open sends the request. Most watches use HTTP/1.1.
func (of *watcher) open(ctx context.Context, w *world, s *script) (err error) {
	target := s.r.in(s.namespace) + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=" +
		url.QueryEscape(of.selector)
	if of.view != nil {
		target = of.view.at(target)
	}
	if of.accept == table {
		target += "&includeObject=Object"
	}
	r := cluster.Get(target)
	if of.accept != "" {
		r = r.With("Accept", of.accept)
	}
	if r.Protocol = cluster.HTTP1; of.view != nil && cluster.DrawProtocol(target) == cluster.HTTP1 {
		r.Protocol = cluster.HTTP2
	}
	if of.gzip {
		r = r.With("Accept-Encoding", "gzip")
	}
	if of.forwarded {
		r = r.With("Origin", w.proxy.URL)
	}
	of.synced, of.done = make(chan struct{}), make(chan struct{})
	if of.resp, err = w.proxy.Watch(ctx, r); err != nil {
		return err
	}
	source := cache
	if of.forwarded || !s.r.cached() || s.r.plural == "events" || of.accept == table && s.r.forwardsTables() { // the state of events cannot be proven current
		source = upstream
	}
	if of.accept == protobuf && of.resp.Header.Get("Content-Type") == "application/json" && s.r.inProtobuf() && !of.view.opaque() {
		source = upstream
	}
	w.sources.expect(of.resp.Header, source, of.String())
	if of.gzip && of.resp.Header.Get("Content-Encoding") == "gzip" {
		of.resp.Body = &unzip{ReadCloser: of.resp.Body}
	}
	return nil
}

// unzip decompresses what it reads. It begins with the first read, because the compressed bytes may
// follow the header later.
type unzip struct {
	io.ReadCloser
	from *gzip.Reader
}

// Read implements io.Reader.
func (u *unzip) Read(p []byte) (n int, err error) {
	if u.from == nil {
		if u.from, err = gzip.NewReader(u.ReadCloser); err != nil {
			return 0, err
		}
	}
	return u.from.Read(p)
}

// read reads the events, up to the first one about the object with the last name.
func (of *watcher) read(ctx context.Context, last string) {
	defer of.resp.Body.Close()
	defer close(of.done)
	for e, err := range conformance.Events(of.resp) {
		if of.err = err; err != nil || ctx.Err() != nil {
			return
		}
		if e.Type != "BOOKMARK" || e.InitialEnd {
			of.events = append(of.events, e)
		}
		if e.InitialEnd {
			close(of.synced)
		}
		if e.Key == last || strings.HasSuffix(e.Key, "/"+last) {
			return
		}
	}
	of.err = errors.New("the watch ended")
}

// await waits for a channel, or for the end of the watch.
func (of *watcher) await(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	case <-of.done:
		return of.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check compares the events with those that the plain implementation makes of the whole watch.
func (of *watcher) check(t *testing.T, hidden, shown *counter) {
	t.Helper()
	want, left := of.due(t)
	for i := range max(len(want), len(of.events)) {
		if i == len(of.events) {
			t.Errorf("%s: the %d. event is missing: %s", of, i+1, encode(nil, want[i]))
			return
		}
		if of.messages() && i < len(want) {
			if err := of.checkMessage(of.events[i], want[i]); err != nil {
				t.Errorf("%s: the %d. event: %v", of, i+1, err)
				return
			}
			continue
		}
		got, err := decode(of.events[i].Line)
		switch {
		case err != nil:
			t.Errorf("%s: %v", of, err)
		case i == len(want):
			t.Errorf("%s: there is an event too many: %s", of, of.events[i].Line)
		default:
			if got = of.settled(got); textAt(got, "type") == "BOOKMARK" {
				got = of.bookmark(got)
			}
			if d := differs(want[i], got, "the event"); d != "" {
				t.Errorf("%s: the %d. event: %s\nwant %s\ngot  %s", of, i+1, d, encode(nil, want[i]), of.events[i].Line)
			} else if err := leaks(of.events[i].Line, want[i]); err != nil {
				t.Errorf("%s: %v", of, err)
			} else {
				continue
			}
		}
		return
	}
	hidden.add(left)
	shown.add(len(want))
}

// bookmark replaces the resourceVersion of a bookmark, which may be any.
func (of *watcher) bookmark(event tree) tree {
	if of.accept == table {
		return event.(*object).without("object")
	}
	meta := at(event, "object", "metadata").(*object).with("resourceVersion", "RV")
	return event.(*object).with("object", at(event, "object").(*object).with("metadata", meta))
}

// settled removes what differs between two watches of Tables: ages, and the column definitions,
// which any event may have.
func (of *watcher) settled(event tree) tree {
	if of.accept != table {
		return event
	}
	rows := settled(at(event, "object")).(*object).get("rows")
	return event.(*object).with("object", at(event, "object").(*object).without("columnDefinitions").with("rows", rows))
}

// start is the resourceVersion of the state with which the watch begins.
func (of *watcher) start() uint64 {
	i := slices.IndexFunc(of.events, func(e conformance.Event) bool { return e.InitialEnd })
	return of.events[i].RV
}

// since returns the events of the same watch, if it begins with the state at a later
// resourceVersion. A controller of the apiserver may have changed an object in between.
func (of *watcher) since(rv uint64) (events []conformance.Event) {
	end := slices.IndexFunc(of.events, func(e conformance.Event) bool { return e.InitialEnd })
	later := slices.Clone(of.events[:end+1])
	for _, e := range of.events[end+1:] {
		i := slices.IndexFunc(later[:end], func(before conformance.Event) bool { return before.Key == e.Key })
		if e.RV <= rv && i >= 0 && e.Type == "MODIFIED" {
			later[i], later[i].Type = e, "ADDED"
		} else {
			later = append(later, e)
		}
	}
	return later
}

// due returns the events that the view must show, and the number of those that it must not show.
func (of *watcher) due(t *testing.T) (want list, left int) {
	t.Helper()
	was := map[string]tree{} // the last versions
	for _, e := range of.whole.since(of.start()) {
		event, err := decode(e.Line)
		if err != nil {
			t.Fatal(err)
		}
		event = event.(*object).with("type", e.Type)
		if event = of.settled(event); e.Type == "BOOKMARK" {
			want = append(want, of.bookmark(event))
			continue
		}
		if of.accept == table {
			want = append(want, event.(*object).with("object", of.view.cutRows(at(event, "object"))))
			continue
		}
		cut := of.view.cut(at(event, "object")).(*object)
		is := cut.with("metadata", cut.get("metadata").(*object).without("resourceVersion"))
		before, known := was[e.Key]
		was[e.Key] = is
		if e.Type == "MODIFIED" && known && of.source == cache && of.same(t, before, is) {
			left++
			continue
		}
		want = append(want, event.(*object).with("object", cut))
	}
	return want, left
}
