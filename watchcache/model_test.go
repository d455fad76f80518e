package watchcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// model applies random operations to a cache and to an upstream that stores its whole history. The
// cache is fed through batches, and streams end after any event. Many clients compare their views
// with upstream.
type model struct {
	t      testing.TB
	r      *rand.Rand
	up     *upstream
	cache  *watchcache.Cache
	stream *feed.Batch // nil if the next events come from a new stream
	sent   int         // the number of upstream's writes that the stream has delivered
	now    time.Time
	epoch  int
	lost   bool        // the watch is broken
	gaps   [][2]uint64 // gaps of relists, exclusive at both ends
	// abandoned is the newest state of all previous epochs.
	abandoned uint64
	clients   []*client
	counts    map[string]int
	resource  object.Resource
}

func (m *model) inGap(rv uint64) bool {
	return slices.ContainsFunc(m.gaps, func(g [2]uint64) bool { return g[0] < rv && rv < g[1] })
}

// gapBetween reports whether (from, to] overlaps a gap.
func (m *model) gapBetween(from, to uint64) bool {
	return slices.ContainsFunc(m.gaps, func(g [2]uint64) bool { return g[0] < to && from < g[1] })
}

func (m *model) rv() uint64 { return m.cache.Stats().ResourceVersion }

func TestModel(t *testing.T) {
	r := watchcache.Random(t)
	total := map[string]int{}
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{t: t, r: r, now: watchcache.Noon, counts: total, resource: *watchcache.Pods}
				m.resource.NoWatchCache = i%2 == 0
				m.up = &upstream{r: r, rv: 100}
				limits := watchcache.Limits{Age: time.Minute, Events: watchcache.Pick(r, 0, 300, 1000), Bytes: watchcache.Pick[int64](r, 1<<20, 8<<20)}
				m.cache = watchcache.New(m.resource, limits)
				m.run(5000)
			})
		})
	}
	t.Logf("%v", total)
	for _, op := range []string{"gap", "fast-forward", "client beyond", "reset", "restore", "lease", "client ahead", "client in gap", "client not told", "client lagged", "client resumed", "client elsewhere", "restart", "cut", "held", "counted", "distrust"} {
		if total[op] == 0 {
			t.Errorf("%s never happened: test does not test", op)
		}
	}
}

func (m *model) run(steps int) {
	m.t.Helper()
	for range 20 {
		m.up.step()
	}
	m.reset()
	for range steps {
		m.now = m.now.Add(time.Duration(m.r.IntN(100)) * time.Millisecond)
		switch n := m.r.IntN(1000); {
		case n < 300:
			for range m.r.IntN(4) {
				m.up.step()
			}
		case n < 600:
			if m.lost {
				break
			}
			if n%6 == 0 {
				m.advance()
			} else {
				m.apply(m.r.IntN(8))
			}
		case n < 610:
			// The watch is lost for a while. Then a relist follows.
			if m.lost {
				m.replace()
			}
			m.lost = !m.lost
		case n < 611:
			m.reset()
		case n < 612:
			m.restore()
		case n < 613:
			m.restart()
		case n < 620:
			m.cache.Writer().Advance(0, m.now)
		case n < 630:
			m.fastForward()
		case n < 645:
			m.open()
		case n < 650 && len(m.clients) > 5:
			i := m.r.IntN(len(m.clients))
			m.clients[i].close()
			m.clients = slices.Delete(m.clients, i, i+1)
		case n < 700:
			m.checkSnapshots()
		case len(m.clients) > 0:
			watchcache.Pick(m.r, m.clients...).poll(m.r, 1+m.r.IntN(20))
		}
	}
	m.finish()
}

// apply delivers the next writes. A new stream begins with some repeats of earlier writes. It may
// end after any write, or fall silent.
func (m *model) apply(n int) {
	m.t.Helper()
	if m.stream == nil {
		m.stream = feed.NewBatch(m.t.Context(), publisher{m}, true)
		m.sent = max(0, m.up.index(m.rv())-m.r.IntN(4))
	}
	for _, w := range m.up.writes[m.sent:min(m.sent+n, len(m.up.writes))] {
		m.stream.Add(w.change())
		if m.sent++; m.sent > 1 && w.rv == m.up.writes[m.sent-2].rv {
			m.counts["lease"]++
		}
		if m.r.IntN(2) == 0 {
			m.publish()
		}
	}
	m.publish()
	switch m.r.IntN(20) {
	case 0:
		m.cut()
		m.counts["cut"]++
	case 1:
		before := m.rv()
		m.quiet()
		if m.rv() > before {
			m.counts["counted"]++
		}
	}
}

// publish publishes the stream's whole revisions.
func (m *model) publish() {
	m.t.Helper()
	if err := m.stream.Publish(); err != nil {
		m.t.Fatalf("Publish: %v", err)
	}
	if m.sent > 0 && m.rv() < m.up.writes[m.sent-1].rv {
		m.counts["held"]++
	}
}

// quiet lets time pass, so that the stream may ask upstream for a proof.
func (m *model) quiet() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// publisher gets the events of the stream.
type publisher struct{ *model }

// Apply implements feed.Publisher.
func (m publisher) Apply(changes []watchcache.Change, _ time.Time) error {
	return m.cache.Writer().Apply(changes, m.now)
}

// Interrupt implements feed.Publisher.
func (m publisher) Interrupt(err error) { m.t.Errorf("held deletions: %v", err) }

// Whole implements feed.Publisher. It counts upstream's objects, as a feed does.
func (m publisher) Whole(_ context.Context, rv uint64, deletions int) bool {
	return len(m.up.at(rv)) == len(m.up.at(m.rv()))-deletions
}

// cut ends the stream.
func (m *model) cut() {
	if m.stream != nil {
		m.stream.Close()
		m.stream = nil
	}
}

// advance delivers a bookmark at any resourceVersion before the next write.
func (m *model) advance() {
	rv := m.up.rv
	if m.stream != nil && m.sent == len(m.up.writes) {
		m.stream.Reached(rv)
		m.publish()
	}
	m.cut() // below, bookmarks come from another stream
	if fed := m.up.index(m.rv()); fed < len(m.up.writes) {
		rv = m.up.writes[fed].rv - 1
	}
	if rv > m.rv() && m.r.IntN(2) == 0 {
		rv = m.rv() + m.r.Uint64N(rv-m.rv()+1)
	}
	m.cache.Writer().Advance(rv, m.now)
}

// replace performs a relist, sometimes of an older state.
func (m *model) replace() {
	m.t.Helper()
	from := m.rv()
	rv := from + m.r.Uint64N(m.up.rv-from+1)
	if m.r.IntN(2) == 0 {
		rv = m.up.rv
	}
	m.cut()
	if m.r.IntN(4) == 0 {
		m.cache.Writer().Distrust()
		m.abandoned = max(m.abandoned, from)
		m.counts["distrust"]++
	}
	err := m.cache.Writer().Replace(m.up.at(rv).list(), rv, m.now)
	if errors.Is(err, watchcache.ErrDiverged) && !m.resource.NoWatchCache && m.sharedRevision(from, rv) {
		m.reset() // more deletions than revisions
		return
	}
	if err != nil {
		m.t.Fatalf("Replace at %d of (%d, %d]: %v", rv, from, m.up.rv, err)
	}
	if rv > from+1 {
		m.gaps = append(m.gaps, [2]uint64{from, rv})
		m.counts["gap"]++
	}
}

// fastForward publishes a state ahead of the stream.
func (m *model) fastForward() {
	m.t.Helper()
	seen := m.cache.Stats().Newest
	rv := m.rv() + m.r.Uint64N(m.up.rv-m.rv()+1)
	if m.r.IntN(2) == 0 {
		m.confirm(rv)
	} else if err := m.cache.Writer().FastForward(m.up.at(rv).list(), rv); err != nil {
		m.t.Fatalf("FastForward to %d at %d: %v", rv, m.rv(), err)
	} else if newest := m.cache.Stats().Newest; newest != max(seen, rv) {
		m.t.Fatalf("FastForward to %d: readers see %d after %d", rv, newest, seen)
	}
	if m.cache.Stats().Newest > m.rv() {
		m.counts["fast-forward"]++
	}
}

// confirm passes upstream's versions at rv to Confirm. It succeeds if the log has the same
// versions.
func (m *model) confirm(rv uint64) {
	m.t.Helper()
	var states []object.State
	for _, o := range m.up.at(rv).list() {
		states = append(states, object.State{Key: o.Key(), UID: o.UID(), ResourceVersion: o.ResourceVersion()})
	}
	seen := m.cache.Stats().Newest >= rv
	same := slices.Equal(m.up.at(rv).list(), m.up.at(m.rv()).list())
	if got := m.cache.Writer().Confirm(states, rv); got != (seen || same) {
		m.t.Fatalf("Confirm(%d) at %d: %t, seen %t, same %t", rv, m.rv(), got, seen, same)
	}
}

func (m *model) sharedRevision(after, upTo uint64) bool {
	writes := m.up.between(after, upTo)
	for i := 1; i < len(writes); i++ {
		if writes[i].rv == writes[i-1].rv {
			return true
		}
	}
	return false
}

func (m *model) reset() {
	m.cut()
	m.abandoned = max(m.abandoned, m.cache.Stats().Newest)
	m.cache.Writer().Reset(m.up.now.list(), m.up.rv)
	m.epoch++
	m.gaps = nil
	m.counts["reset"]++
}

// restore resets upstream to an earlier state.
func (m *model) restore() {
	m.up.restore(m.up.rv - m.r.Uint64N(min(m.up.rv-100, 200)))
	m.counts["restore"]++
	m.reset()
}

// restart replaces the cache with a new one that begins at an earlier state, as the feed of a new
// process does if clients resume there. The clients stay.
func (m *model) restart() {
	m.t.Helper()
	for _, c := range m.clients {
		c.close()
	}
	m.cache.Writer().End()
	m.cut()
	rv := m.up.rv - m.r.Uint64N(min(m.up.rv-100, 200))
	m.cache = watchcache.New(m.resource, m.cache.Limits())
	m.cache.Writer().Reset(m.up.at(rv).list(), rv)
	m.abandoned, m.gaps = 0, nil
	for _, c := range m.clients {
		if rv := max(c.covered, c.start); c.epoch != m.epoch || len(c.recent) > 0 {
			c.relist()
		} else {
			c.resume(rv)
		}
	}
	m.counts["restart"]++
}

// open starts a client, often at a resourceVersion that the cache has dropped or not reached yet.
func (m *model) open() {
	m.t.Helper()
	c := &client{t: m.t, m: m, selection: randomSelection(m.t, m.r)}
	rv := m.up.rv - min(m.r.Uint64N(100), m.up.rv-1)
	if m.r.IntN(2) == 0 || !c.open(rv, nil) {
		c.relist()
	}
	if c.ahead {
		m.counts["client ahead"]++
	}
	m.clients = append(m.clients, c)
}

// checkSnapshots checks the guarantees Exact and Not older than.
func (m *model) checkSnapshots() {
	m.t.Helper()
	stats := m.cache.Stats()
	s, err := m.cache.Snapshot()
	if err != nil || s.ResourceVersion() != stats.Newest {
		m.t.Fatalf("Snapshot at %d, want %d: %v", s.ResourceVersion(), stats.Newest, err)
	}
	m.checkSnapshot(s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	want := stats.Newest - 5 + m.r.Uint64N(10)
	s, err = m.cache.WaitFresh(ctx, want)
	if want > stats.Newest {
		if !errors.Is(err, watchcache.ErrTooNew) {
			m.t.Fatalf("WaitFresh(%d) at %d: %v", want, stats.Newest, err)
		}
	} else if err != nil || s.ResourceVersion() < want {
		m.t.Fatalf("WaitFresh(%d): %d, %v", want, s.ResourceVersion(), err)
	}
	for range 5 {
		rv := stats.Since - min(stats.Since, 5) + m.r.Uint64N(stats.ResourceVersion-stats.Since+10)
		s, err := m.cache.SnapshotAt(rv)
		switch {
		case rv > stats.Newest, rv > stats.ResourceVersion && rv != stats.Newest && err != nil:
			if !errors.Is(err, watchcache.ErrTooNew) {
				m.t.Fatalf("Exact: SnapshotAt(%d) at %d: %v", rv, stats.ResourceVersion, err)
			}
		case rv < stats.Since || m.inGap(rv):
			if !errors.Is(err, watchcache.ErrTooOld) {
				m.t.Fatalf("Exact: SnapshotAt(%d) since %d, gaps %v: %v", rv, stats.Since, m.gaps, err)
			}
		case err != nil || s.ResourceVersion() != rv:
			m.t.Fatalf("Exact: SnapshotAt(%d) since %d: %d, %v", rv, stats.Since, s.ResourceVersion(), err)
		default:
			m.checkSnapshot(s)
		}
	}
}

func (m *model) checkSnapshot(s watchcache.Snapshot) {
	m.t.Helper()
	want := m.up.at(s.ResourceVersion()).list()
	var size int64
	for _, o := range want {
		size += int64(len(o.Bytes()))
		if s.Get(o.Key()) == nil {
			m.t.Fatalf("Exact: at %d %s is missing", s.ResourceVersion(), o.Key())
		}
	}
	got := slices.Collect(s.Objects("", ""))
	if !slices.EqualFunc(got, want, func(a, b *object.Object) bool { return bytes.Equal(a.Bytes(), b.Bytes()) }) {
		m.t.Fatalf("Exact: at %d there are [%s], want %d objects", s.ResourceVersion(), names(s), len(want))
	}
	if s.Len() != len(want) || s.Bytes() != size || s.Count("", "") != len(want) {
		m.t.Fatalf("at %d: Len %d, Bytes %d, Count %d; want %d, %d", s.ResourceVersion(), s.Len(), s.Bytes(), s.Count("", ""), len(want), size)
	}
	from, to := watchcache.Pods.KeyRange("a")
	n := 0
	for o := range s.Objects(from, to) {
		if n++; o.Namespace() != "a" {
			m.t.Fatalf("%s in namespace a", o.Key())
		}
	}
	if n != s.Count(from, to) {
		m.t.Fatalf("counted %d of %d objects of a namespace", s.Count(from, to), n)
	}
}

// finish applies the remaining writes. Then every client must have upstream's state.
func (m *model) finish() {
	m.t.Helper()
	if m.lost {
		m.replace()
	}
	for m.up.index(m.rv()) < len(m.up.writes) {
		m.apply(50)
		m.quiet()
	}
	m.cut()
	m.cache.Writer().Advance(m.up.rv, m.now)
	for _, c := range m.clients {
		for c.poll(m.r, 7) || c.covered < m.up.rv {
		}
		c.checkState(m.up.rv)
		c.close()
	}
	if n := m.cache.Stats().Cursors; n != 0 {
		m.t.Errorf("%d cursors left", n)
	}
	m.cache.Writer().End()
}
