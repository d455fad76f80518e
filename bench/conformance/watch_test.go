package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// watchForms are the ways to watch a collection. $N is the resourceVersion before the script, $HOME
// the namespace where the script runs, and $FIRST an object in this namespace. If in is true, the
// path is that namespace's, otherwise the whole collection's.
var watchForms = []struct {
	name  string
	in    bool // the namespace only
	query string
	from  source
	only  *collection // nil: any
}{
	{"changes", false, "resourceVersion=$N", cache, nil},
	{"changes in a namespace", true, "resourceVersion=$N", cache, nil},
	{"changes, no initial events", true, "resourceVersion=$N&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", cache, nil},
	{"changes from a resourceVersion that is reached later", true, "resourceVersion=$N+4", cache, nil},
	{"state, then changes", true, "resourceVersion=0", cache, nil},
	{"state, then changes, all namespaces", false, "resourceVersion=0", cache, nil},
	{"state with its end", true, "resourceVersion=0&allowWatchBookmarks=true", cache, nil},
	{"changes after any", true, "resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", cache, nil},
	{"initial events, any", false, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0", cache, nil},
	{"initial events with their end, any", false, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0&allowWatchBookmarks=true", cache, nil},
	{"initial events, not older", false, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=$N", cache, nil},
	{"initial events with their end, not older", false, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=$N&allowWatchBookmarks=1", cache, nil},
	{"initial events with their end, not older than long ago", true, "sendInitialEvents=1&resourceVersionMatch=NotOlderThan&resourceVersion=1&allowWatchBookmarks=", cache, nil},
	{"initial events by label, with their end", false, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=$N&allowWatchBookmarks=true&labelSelector=app%3Dweb", cache, nil},
	{"by label", false, "resourceVersion=$N&labelSelector=app%3Dweb", cache, nil},
	{"by label in a namespace", true, "resourceVersion=$N&labelSelector=app%3Dweb", cache, nil},
	{"by another label", false, "resourceVersion=$N&labelSelector=app%3D%3Ddb", cache, nil},
	{"by what a label is not", true, "resourceVersion=$N&labelSelector=app!%3Dweb", cache, nil},
	{"by one of two labels", true, "resourceVersion=$N&labelSelector=app+in+(web,db)", cache, nil},
	{"by none of the labels", true, "resourceVersion=$N&labelSelector=app+notin+(web)", cache, nil},
	{"by a label being there", true, "resourceVersion=$N&labelSelector=app", cache, nil},
	{"by a label not being there", true, "resourceVersion=$N&labelSelector=!app", cache, nil},
	{"by name", true, "resourceVersion=$N&fieldSelector=metadata.name%3D$FIRST", cache, nil},
	{"by name in all namespaces", false, "resourceVersion=$N&fieldSelector=metadata.name%3D$FIRST", cache, nil},
	{"by name, with the state", true, "resourceVersion=0&allowWatchBookmarks=true&fieldSelector=metadata.name%3D$FIRST", cache, nil},
	{"by what a name is not", true, "resourceVersion=$N&fieldSelector=metadata.name!%3D$FIRST", cache, nil},
	{"by name and label", true, "resourceVersion=$N&fieldSelector=metadata.name%3D$FIRST&labelSelector=app%3Dweb", cache, nil},
	{"most recent state", true, "", ifCached, nil},
	{"most recent state with its end", true, "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", ifCached, nil},
	{"changes after the most recent", true, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan", ifCached, nil},
	{"most recent state, all namespaces", false, "allowWatchBookmarks=true", ifCached, nil},
	{"most recent state without its end", false, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", ifCached, nil},
	{"most recent state by label", false, "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=app%3Dweb", ifCached, nil},
	{"most recent state of one by name", true, "allowWatchBookmarks=true&fieldSelector=metadata.name%3D$FIRST", ifCached, nil},
	{"pretty means nothing", true, "resourceVersion=$N&pretty=true", cache, nil},
	{"a limit", true, "resourceVersion=$N&limit=1", upstream, nil},
	{"unknown parameters", true, "resourceVersion=$N&unknown=1", upstream, nil},
	{"a timeout of its own", true, "resourceVersion=$N&timeoutSeconds=300&timeout=200s", cache, nil},

	{"by namespace", false, "resourceVersion=$N&fieldSelector=metadata.namespace%3D$HOME", cache, pods},
	{"by what the namespace is not", false, "resourceVersion=$N&fieldSelector=metadata.namespace!%3D$HOME", cache, pods},
	{"by namespace and name", false, "resourceVersion=$N&fieldSelector=metadata.namespace%3D$HOME,metadata.name%3D$FIRST", cache, pods},
	{"by node", false, "resourceVersion=$N&fieldSelector=spec.nodeName%3Dn1", cache, pods},
	{"by node in a namespace", true, "resourceVersion=$N&fieldSelector=spec.nodeName%3D%3Dn1", cache, pods},
	{"by node, with the state", false, "resourceVersion=0&allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dn1", cache, pods},
	{"by what the node is not", true, "resourceVersion=$N&fieldSelector=spec.nodeName!%3Dn1", cache, pods},
	{"by no node yet", true, "resourceVersion=$N&fieldSelector=spec.nodeName%3D", cache, pods},
	{"by some node", true, "resourceVersion=$N&fieldSelector=spec.nodeName!%3D", cache, pods},
	{"by node and label", true, "resourceVersion=$N&fieldSelector=spec.nodeName%3Dn1&labelSelector=app%3Dweb", cache, pods},
	{"by phase", true, "resourceVersion=$N&fieldSelector=status.phase%3DPending", cache, pods},
}

// Every event must equal the apiserver's in type, bytes and position.
func TestWatches(t *testing.T) {
	for _, c := range []*collection{pods, configMaps, nodes, namespaces, leases, endpoints, widgets, widgetsV2, planets, coreEvents, newEvents} {
		t.Run(c.name, func(t *testing.T) { watchScript(t, c) })
	}
}

// watchScript opens all watches of a collection at both servers, runs a script, and compares the
// events.
func watchScript(t *testing.T, c *collection) {
	s := newScript(t, c)
	n := s.object(s.elsewhere, s.first+"-before", "web", "n1").createT(t)
	catchUp(t, c, n)
	fill := strings.NewReplacer("$N+4", fmt.Sprint(n+4), "$N", fmt.Sprint(n), "$HOME", s.home, "$FIRST", s.first)

	var open []asked
	for _, f := range watchForms {
		if f.only != nil && f.only != c || c.spares(f.name) || withoutStreaming(t, f.name, f.query) {
			continue
		}
		path := c.all()
		if f.in {
			path = c.in(s.home)
		}
		r, from := get(fill.Replace(path+"?watch=true&"+f.query)), c.source(f.from)
		state := strings.Contains(f.query, "sendInitialEvents=true") || !strings.Contains(f.query, "=$N")
		begins := !f.in && state && !strings.Contains(f.query, "metadata.name")
		open = append(open, asked{f.name, r, from, begins, nil})
		for _, form := range lots(f.name+c.name, watchedForms) {
			if r, ok := form.of(r); ok {
				open = append(open, asked{f.name + ", " + form.String(), r, inForm(r, from), begins, nil})
			}
		}
		of, form := views[c.configured()], drawForm(f.name+c.name+" in a view", viewedForms)
		// The plain implementation does not know objects that existed before a watch.
		if r, ok := form.of(r); ok && len(of) > 0 && !strings.Contains(f.query, "$N+4") {
			v := of[cluster.Draw(len(of), f.name, c.name)]
			open = append(open, asked{f.name + ", " + form.String() + ", " + v.name, r, inForm(r, from), begins, v})
		}
	}
	for name, path := range map[string]string{
		"collection": c.root + "/watch" + c.in(s.home)[len(c.root):],
		"object":     c.root + "/watch" + c.in(s.home)[len(c.root):] + "/" + s.first,
	} {
		for _, query := range []string{fill.Replace("?resourceVersion=$N"), "?resourceVersion=0&allowWatchBookmarks=true", ""} {
			open = append(open, asked{"watch prefix of " + name + query, get(path + query), upstream, false, nil})
		}
	}
	pairs := openPairs(t, open)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	compareEach(t, pairs, fenced(s.first))
}

// pair is the same watch at both servers.
type pair struct {
	name      string
	want, got *stream
	view      *view      // of the proxy's watch
	from      source     // of the proxy's response
	log       *accessLog // which tells the source; nil once it was checked
}

// asked is a watch to open at both servers.
type asked struct {
	name string
	request
	from source
	// begins is true if the watch begins with objects. From etcd, the apiserver may read the state
	// after it has sent the header. No write may come before that, or before the whole state has come:
	// the apiserver ends a watch whose next events wait for long.
	begins bool
	view   *view // in which the proxy answers; nil: none
}

// state returns the number of objects with which a watch begins.
func (a asked) state(t *testing.T) int {
	t.Helper()
	if !a.begins {
		return 0
	}
	u, err := url.Parse(a.Target)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	selected := url.Values{"labelSelector": query["labelSelector"], "fieldSelector": query["fieldSelector"]}
	list := must(t, apiserver, get(u.Path+"?"+selected.Encode()), http.StatusOK)
	return max(1, int(gjson.GetBytes(list.Body, "items.#").Int()))
}

// openPairs opens watches, atOnce of them concurrently. When the test ends, it checks the sources of
// the proxy's responses that compareEach has not checked. The watches stay open: those of the
// apiserver have a connection each, while three of four of the proxy's share one. TestWatchEncoding
// opens 120 pairs, the most in make test, so its 240 watches use some 150 connections.
func openPairs(t *testing.T, all []asked) []*pair {
	t.Helper()
	pairs := make([]*pair, len(all))
	err := workload.Parallel(t.Context(), len(all), atOnce, func(_ context.Context, i int) error {
		v := all[i].view
		p := &pair{name: all[i].name, view: v, from: all[i].from, log: answers}
		if minor < 34 && strings.Contains(all[i].Target, "allowWatchBookmarks") {
			p.from = anywhere // the proxy waits for the first bookmark to learn its form
		}
		var err error
		if p.want, err = openStream(t.Context(), apiserver, v.direct(all[i].request)); err != nil {
			return err
		}
		t.Cleanup(p.want.close)
		if p.got, err = openStream(t.Context(), proxied, v.of(all[i].request)); err != nil {
			return err
		}
		t.Cleanup(p.got.close)
		pairs[i] = p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pairs {
		size := all[i].state(t)
		for _, s := range []*stream{p.want, p.got} {
			cluster.Eventually(t, p.name+" has begun", func() bool { return len(s.lines) >= min(size, cap(s.lines)) })
		}
	}
	t.Cleanup(func() {
		for _, p := range pairs {
			p.checkSource(t)
		}
	})
	return pairs
}

// checkSource ends the proxy's watch and checks its source, but only once.
func (p *pair) checkSource(t *testing.T) {
	t.Helper()
	log := p.log
	if p.log = nil; log == nil {
		return
	}
	p.got.close()
	if err := p.from.check(context.WithoutCancel(t.Context()), log, p.got.header); err != nil {
		t.Errorf("%s: %v", p.name, err)
	}
}

// compareEach compares the watches up to an event, and then checks their sources. Each watch is a
// subtest, which fails for both.
func compareEach(t *testing.T, pairs []*pair, last func(Event) bool) {
	t.Helper()
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			p.compare(t, last)
			p.checkSource(t)
		})
	}
}

func openPair(t *testing.T, name string, r request, from source) *pair {
	t.Helper()
	return openPairs(t, []asked{{name, r, from, false, nil}})[0]
}

// withoutStreaming reports whether the apiserver refuses a watch, because its feature WatchList is
// disabled. That is the default of version 1.33. The watch then counts as skipped.
func withoutStreaming(t *testing.T, name, query string) bool {
	t.Helper()
	refused := minor < 34 && strings.Contains(query, "sendInitialEvents")
	if refused {
		t.Run(name, func(t *testing.T) { t.Skip("the apiserver refuses sendInitialEvents") })
	}
	return refused
}

func (p *pair) compareHeaders() error {
	want, got := p.want.header, p.got.header
	if p.view != nil { // upstream's watches are not compressed again, and messages are compared with JSON
		want, got = want.Clone(), got.Clone()
		for _, name := range []string{"Content-Encoding", "Content-Type", "Vary"} {
			want.Del(name)
			got.Del(name)
		}
	}
	return compareHeads(reply{Status: 200, Header: want}, reply{Status: 200, Header: got})
}

// compare reads both watches up to an event and compares the events. It returns the number of
// events.
func (p *pair) compare(t *testing.T, last func(Event) bool) int {
	t.Helper()
	if err := p.compareHeaders(); err != nil {
		t.Error(err)
	}
	want, err := p.want.until(last)
	if err != nil || len(want) == 0 {
		t.Fatalf("the apiserver's watch gave %v: %v", want, err)
	}
	if p.view != nil { // which may not show by what the last event is known, but shows the event
		rv := want[len(want)-1].RV
		last = func(e Event) bool { return e.RV >= rv && (e.Type != "BOOKMARK" || e.InitialEnd) }
	}
	got, err := p.got.until(last)
	if err != nil {
		t.Errorf("the proxy's watch: %v", err)
	}
	want, got = withoutBookmarks(t, want), withoutBookmarks(t, got)
	if p.view != nil {
		from := p.from
		if from == anywhere || inParts {
			p.got.close()
			if from, err = answers.of(t.Context(), p.got.header); err != nil {
				t.Fatal(err)
			}
		}
		if want, got, err = p.view.events(want, got, from); err != nil {
			t.Fatalf("%v: %v", p.view, err)
		}
	}
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			t.Fatalf("event %d of %d did not come: %v", i, len(want), want[i])
		case i >= len(want):
			t.Fatalf("event %d is one too many: %v", i, got[i])
		case !bytes.Equal(Settled(got[i]), Settled(want[i])):
			t.Fatalf("event %d of %d differs\n%s", i, len(want), excerpts(want[i].Line, got[i].Line))
		}
		if _, _, err := sameAges(want[i].Line, got[i].Line); err != nil && bytes.Contains(want[i].Line, []byte(`"kind":"Table"`)) {
			t.Fatalf("event %d of %d: %v", i, len(want), err)
		}
	}
	return len(want)
}

// ownLease is the prefix of the key of the apiserver's own lease. The apiserver may renew this
// lease after the first watch of a pair is opened and before the second watch is opened.
const ownLease = "kube-system/apiserver-"

// withoutBookmarks removes bookmarks, which may arrive at any time. It first checks that no later
// event is at or below a bookmark.
func withoutBookmarks(t *testing.T, events []Event) []Event {
	t.Helper()
	var rest []Event
	var shown, marked uint64
	for _, e := range events {
		switch {
		case e.Type == "BOOKMARK" && e.RV < shown:
			t.Errorf("a bookmark at %d came after %d", e.RV, shown)
		case e.Type == "BOOKMARK":
			marked = e.RV
		case e.RV <= marked:
			t.Errorf("%v came after a bookmark at %d", e, marked)
		}
		shown = max(shown, e.RV)
		if (e.Type != "BOOKMARK" || e.InitialEnd) && !strings.HasPrefix(e.Key, ownLease) {
			rest = append(rest, e)
		}
	}
	return rest
}
