//go:build verify

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// These tests judge when servers send bookmarks.

// A watch with bookmarks gets a bookmark once a minute and another bookmark shortly before its end,
// so that its client can resume from there, but no further bookmarks. The apiserver sometimes sends
// the last bookmark twice, because it checks once a second which bookmarks are due.
func TestBookmarks(t *testing.T) {
	// lifetime is longer than the time to the first regular bookmark, by more than two seconds, and
	// shorter than the time to the second regular bookmark.
	const lifetime = 66 * time.Second
	var streams []*stream
	var unseen []uint64 // resourceVersions of writes that no watch receives
	began := time.Now()
	for _, c := range samples {
		s := newScript(t, c)
		n := s.object(s.home, cluster.UniqueName("before"), "web", "").createT(t)
		catchUp(t, c, n)
		target := fmt.Sprintf("%s?watch=true&labelSelector=app%%3Dnobody&resourceVersion=%d&timeoutSeconds=%d", c.all(), n, lifetime/time.Second)
		silent, marked := openPair(t, "silent", get(target), cache), openPair(t, "marked", get(target+"&allowWatchBookmarks=true"), cache)
		streams = append(streams, silent.want, silent.got, marked.want, marked.got)
		unseen = append(unseen, s.object(s.home, cluster.UniqueName("unseen"), "web", "").createT(t))
	}
	opened := time.Now()
	for i, four := range slices.Collect(slices.Chunk(toEnd(streams), 4)) {
		t.Run(samples[i].name, func(t *testing.T) {
			silent, marked := four[:2], four[2:]
			if samples[i].uncached {
				silent, marked = four, nil // etcd's watch has no bookmarks
			}
			for _, w := range silent {
				if w.err != nil || len(w.events) > 0 {
					t.Errorf("%s: a watch without bookmarks gave %v, %v", w.name, w.events, w.err)
				}
			}
			marks := map[string]bool{}
			for _, w := range marked {
				w.check(t, unseen[i], began, opened, lifetime)
				for _, e := range w.events {
					marks[string(Settled(e))] = true
				}
			}
			if len(marks) > 1 {
				t.Errorf("bookmarks differ: %v", slices.Collect(maps.Keys(marks)))
			}
		})
	}
}

// watched has the bookmarks of a watch, until its end.
type watched struct {
	name        string // the server's name
	events      []Event
	err         error
	last, ended time.Time // when the last event and the end arrived
}

// toEnd reads watches concurrently.
func toEnd(streams []*stream) []watched {
	all := make([]watched, len(streams))
	var reading sync.WaitGroup
	for i, s := range streams {
		w := &all[i]
		w.name = s.name
		reading.Go(func() {
			w.events, w.err = s.until(func(Event) bool {
				w.last = time.Now()
				return false
			})
			w.ended = time.Now()
		})
	}
	reading.Wait()
	return all
}

// check checks a watch that received only bookmarks. Its lifetime began between the times after and
// before.
func (w *watched) check(t *testing.T, unseen uint64, after, before time.Time, lifetime time.Duration) {
	t.Helper()
	// The apiserver checks once a second which bookmarks are due.
	const early = 3500 * time.Millisecond
	due, twice := 2, 0
	if w.name == apiserver.Name || inParts {
		twice = 1
	}
	if n := len(w.events); w.err != nil || n < due || n > due+twice {
		t.Fatalf("%s: %d bookmarks instead of %d, %v", w.name, n, due, w.err)
	}
	for _, e := range w.events {
		if e.Type != "BOOKMARK" || e.InitialEnd || e.RV < unseen {
			t.Errorf("%s: %s", w.name, e.Line)
		}
	}
	if w.last.Before(after.Add(lifetime-early)) || w.last.After(before.Add(lifetime)) {
		t.Errorf("%s: the last bookmark came %v before the end", w.name, w.ended.Sub(w.last))
	}
	if w.ended.Before(after.Add(lifetime)) {
		t.Errorf("%s: the end came after %v of %v", w.name, w.ended.Sub(after), lifetime)
	}
}

// A probe is a list that matches nothing. A watch of a quiet collection with a timeout of three
// seconds gets a bookmark long before an ordinary watch. The bookmark is at or beyond the revision
// of the previous probe. Without a probe of the same collection there is no such bookmark, because
// only the probe makes the apiserver ask etcd for the progress of this collection.
func TestSideWatchBringsABookmark(t *testing.T) {
	for _, c := range []*collection{endpoints, nodes, planets, widgetsV2} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			from := revision(t, must(t, apiserver, get(c.all()+"?limit=1"), 200))
			elsewhere(t)
			probe := c.all() + "?limit=1&fieldSelector=metadata.name%3Dwatchproxy.dev:none"
			if c.namespaced {
				probe = c.in("watchproxy.none") + "?limit=1"
			}
			probed := revision(t, must(t, apiserver, get(probe), 200))
			began := time.Now()
			s, err := openStream(t.Context(), apiserver, get(fmt.Sprintf("%s?watch=true&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion=%d", c.all(), from)))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			events, err := s.until(func(e Event) bool { return e.Type == "BOOKMARK" })
			if err != nil || len(events) == 0 {
				t.Fatalf("the watch gave %v: %v", events, err)
			}
			last := events[len(events)-1]
			t.Logf("a bookmark at %d after %.1f s, probed %d, watched from %d", last.RV, time.Since(began).Seconds(), probed, from)
			if last.Type != "BOOKMARK" || last.RV < probed {
				t.Errorf("%v does not reach %d", last, probed)
			}
		})
	}
}
