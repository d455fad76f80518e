package watchcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// reader is a watch in its own goroutine. It sleeps until it is signalled. A lost signal causes a
// deadlock of the synctest bubble, and a lost mark a missing event.
type reader struct {
	selection *selection
	limit     int
	eager     *rand.Rand // if set, the reader also polls without a signal, as for a bookmark
	until     uint64
	got       []watchcache.Delta
}

func (rd *reader) run(c *watchcache.Cursor) error {
	var deltas []watchcache.Delta
	for {
		d, position, err := c.Poll(deltas[:0], rd.limit)
		if err != nil {
			return err
		}
		deltas = d
		for _, d := range deltas {
			if rd.got = append(rd.got, d); d.RV > position {
				return fmt.Errorf("position %d does not cover %s", position, show([]watchcache.Delta{d}))
			}
		}
		switch {
		case len(rd.got) > 0 && rd.got[len(rd.got)-1].RV == rd.until:
			return nil
		case len(deltas) == rd.limit:
		case rd.eager != nil && rd.eager.IntN(3) > 0:
			runtime.Gosched()
		default:
			<-c.Ready()
		}
	}
}

// fork returns a source of randomness for another goroutine.
func fork(r *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(r.Uint64(), 0)) }

// TestConcurrentWatches checks the protocol of marks, publication and signals. Each reader must see
// each matching event exactly once.
func TestConcurrentWatches(t *testing.T) {
	r := watchcache.Random(t)
	for i := range cachetest.Rounds(3, 6) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testConcurrentWatches(t, r, 4000) })
		})
	}
}

func testConcurrentWatches(t *testing.T, r *rand.Rand, events int) {
	namespaces, nodes := []string{"a", "b", "c", "d"}, []string{"n1", "n2", "n3", "n4"}
	var selections []*selection
	for _, ns := range append(namespaces, "") {
		selections = append(selections, newSelection(t, ns, "", ""))
		selections = append(selections, newSelection(t, ns, "app=web", ""))
		if ns != "" {
			selections = append(selections, newSelection(t, ns, "", "metadata.name=last"))
		}
	}
	for _, node := range nodes {
		selections = append(selections, newSelection(t, "", "", "spec.nodeName="+node))
		selections = append(selections, newSelection(t, "", "", "spec.nodeName!="+node))
	}

	// The last events match every reader, so each reader can detect the end.
	var history []*write
	now := map[string]*version{}
	add := func(name, namespace, node, app string, deleted bool) {
		key := namespace + "/" + name
		p := watchcache.Pod{
			Namespace: namespace, Name: name, UID: key, Node: node,
			RV: uint64(len(history)) + 2, Labels: map[string]string{"app": app},
		}
		w := &write{rv: p.RV, key: key, prev: now[key]}
		if deleted && w.prev != nil {
			gone := w.prev.pod
			gone.RV = p.RV
			w.gone, now[key] = newVersion(gone), nil
		} else {
			w.next = newVersion(p)
			now[key] = w.next
		}
		history = append(history, w)
	}
	for range events {
		add(watchcache.Pick(r, "x", "y", "z"), watchcache.Pick(r, namespaces...), watchcache.Pick(r, nodes...), watchcache.Pick(r, "web", "db"), r.IntN(4) == 0)
	}
	for i := range namespaces {
		for _, node := range nodes {
			add("last", namespaces[i], node, "web", false)
		}
	}

	c := watchcache.New(*watchcache.Pods, watchcache.Roomy)
	c.Reset(nil, 1)
	var readers []*reader
	var done sync.WaitGroup
	for i, s := range append(selections, selections...) {
		rd := &reader{selection: s, limit: watchcache.Pick(r, 1, 3, 1000)}
		if i%4 == 0 {
			rd.eager = fork(r)
		}
		for _, w := range history {
			if _, ok := s.delta(w); ok {
				rd.until = w.rv
			}
		}
		readers = append(readers, rd)
		done.Go(func() {
			cursor, err := c.Watch(s.filter, 1)
			if err != nil {
				t.Error(err)
				return
			}
			defer cursor.Close()
			if err := rd.run(cursor); err != nil {
				t.Errorf("%v: %v", s, err)
			}
		})
	}
	for next := 0; next < len(history); {
		var batch []watchcache.Change
		for range 1 + r.IntN(6) {
			if next < len(history) {
				batch = append(batch, history[next].change())
				next++
			}
		}
		watchcache.Apply(t, c, batch...)
		switch r.IntN(20) {
		case 0:
			synctest.Wait() // all readers are asleep
		case 1, 2, 3, 4:
			runtime.Gosched()
		}
	}
	done.Wait()
	for _, rd := range readers {
		checkHistory(t, rd, history)
	}
	if n := c.Stats().Cursors; n != 0 {
		t.Errorf("%d cursors left", n)
	}
}

func checkHistory(t *testing.T, rd *reader, history []*write) {
	t.Helper()
	got := rd.got
	for _, w := range history {
		want, ok := rd.selection.delta(w)
		if !ok {
			continue
		}
		if len(got) == 0 || got[0].Received == 0 || !sameDelta(got[0], want) {
			t.Errorf("%v: delivered %.80s, want %s", rd.selection, show(got), show([]watchcache.Delta{want}))
			return
		}
		got = got[1:]
	}
	if len(got) > 0 {
		t.Errorf("%v: delivered %.80s in excess", rd.selection, show(got))
	}
}

// Watches open, close and read snapshots while the writer begins epochs, relists and ends the
// cache. The test only checks that every watch ends.
func TestConcurrentEnd(t *testing.T) {
	r := watchcache.Random(t)
	synctest.Test(t, func(t *testing.T) {
		c := watchcache.New(*watchcache.Pods, watchcache.Limits{Events: 200, Bytes: 1 << 20})
		c.Reset(nil, 1)
		var done sync.WaitGroup
		for _, s := range []*selection{
			newSelection(t, "", "", ""), newSelection(t, "a", "", ""), newSelection(t, "b", "", ""),
			newSelection(t, "", "", "spec.nodeName=n1"), newSelection(t, "a", "", "metadata.name=x"),
		} {
			for range 4 {
				r := fork(r)
				done.Go(func() {
					for {
						snapshot, err := c.WaitFresh(context.Background(), 0)
						if errors.Is(err, watchcache.ErrEnded) {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						cursor, err := c.Watch(s.filter, snapshot.ResourceVersion()+r.Uint64N(2))
						if err != nil {
							continue // overtaken by the writer
						}
						err = (&reader{selection: s, limit: 5}).run(cursor)
						cursor.Close()
						if !errors.Is(err, watchcache.ErrEnded) && !errors.Is(err, watchcache.ErrLagged) && !errors.Is(err, watchcache.ErrTooOld) {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		rv := uint64(1)
		for range 4000 {
			rv++
			switch r.IntN(100) {
			case 0:
				rv = 1 + r.Uint64N(rv)
				c.Reset(nil, rv)
			case 1:
				rv += 10
				if err := c.Replace(nil, rv, watchcache.Noon); err != nil {
					t.Error(err)
				}
			case 2:
				synctest.Wait()
			default:
				p := pod(watchcache.Pick(r, "x", "y"), rv)
				p.Node = watchcache.Pick(r, "n1", "n2")
				watchcache.Apply(t, c, p.Set())
			}
		}
		c.End()
		done.Wait()
	})
}

// A watch that opens while the writer publishes misses no events.
func TestConcurrentOpen(t *testing.T) {
	r := watchcache.Random(t)
	synctest.Test(t, func(t *testing.T) {
		c := filled(1, pod("x", 1))
		const last = 6000
		var done sync.WaitGroup
		for range 8 {
			done.Go(func() {
				for {
					s, err := c.Snapshot()
					if err != nil || s.ResourceVersion() >= last-1 {
						return
					}
					from := s.ResourceVersion()
					cursor, err := c.Watch(everything(t), from)
					if err != nil {
						t.Error(err)
						return
					}
					var got []watchcache.Delta
					for polls := 0; len(got) == 0; polls++ {
						if polls > 1 {
							<-cursor.Ready()
						}
						if got, _, err = cursor.Poll(nil, 10); err != nil {
							t.Error(err)
							break
						}
					}
					cursor.Close()
					for i, d := range got {
						if d.RV != from+1+uint64(i) {
							t.Errorf("watch from %d delivered %s", from, show(got))
							break
						}
					}
				}
			})
		}
		for rv := uint64(2); rv <= last; {
			var batch []watchcache.Change
			for range 1 + r.IntN(5) {
				batch = append(batch, pod("x", rv).Set())
				rv++
			}
			watchcache.Apply(t, c, batch...)
			if r.IntN(3) == 0 {
				synctest.Wait()
			}
		}
		done.Wait()
	})
}

// A reader that is about to wait detects a publication. Reader and writer race for each
// resourceVersion. The test spins, because a sleep would decide the race.
func TestConcurrentWaitFresh(t *testing.T) {
	c := filled(1)
	r := watchcache.Random(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a lost wake-up causes this timeout
	defer cancel()
	last := uint64(cachetest.Rounds(10_000, 30_000))
	var reached atomic.Uint64
	var done sync.WaitGroup
	done.Go(func() {
		for rv := uint64(2); rv <= last; rv++ {
			if s, err := c.WaitFresh(ctx, rv); err != nil || s.ResourceVersion() < rv {
				t.Errorf("WaitFresh(%d): %d, %v", rv, s.ResourceVersion(), err)
				return
			}
			reached.Store(rv)
			for range r.IntN(1000) { // vary the order of reader and writer
				reached.Load()
			}
		}
	})
	for rv := uint64(2); rv <= last && ctx.Err() == nil; rv++ {
		c.Advance(rv, watchcache.Noon)
		for reached.Load() < rv && ctx.Err() == nil {
			runtime.Gosched()
		}
	}
	done.Wait()
}

// Two goroutines may call End concurrently.
func TestEndTwice(*testing.T) {
	for range 2000 {
		c := watchcache.New(*watchcache.Pods, watchcache.Limits{})
		var both sync.WaitGroup
		for range 2 {
			both.Go(c.End)
		}
		both.Wait()
	}
}

// A watch from a snapshot of an old epoch would begin beyond the next epoch's log and miss events.
// So it is refused.
func TestWatchAfterAnotherEpoch(t *testing.T) {
	c := watchcache.New(*watchcache.Pods, watchcache.Limits{})
	c.Reset(nil, 1000)
	state, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	filter := everything(t)
	if cursor, err := c.WatchAfter(filter, state); err != nil {
		t.Error(err)
	} else {
		cursor.Close()
	}
	c.Reset(nil, 500)
	if _, err := c.WatchAfter(filter, state); !errors.Is(err, watchcache.ErrEnded) {
		t.Errorf("got %v", err)
	}
}
