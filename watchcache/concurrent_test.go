package watchcache_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
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
		d, position, err := c.Poll(deltas[:0], rd.limit, math.MaxInt)
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
	c.Writer().Reset(nil, 1)
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

// A watch from a snapshot of an old epoch would begin beyond the next epoch's log and miss events.
// So it is refused.
func TestWatchAfterAnotherEpoch(t *testing.T) {
	c := watchcache.New(*watchcache.Pods, watchcache.Limits{})
	c.Writer().Reset(nil, 1000)
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
	c.Writer().Reset(nil, 500)
	if _, err := c.WatchAfter(filter, state); !errors.Is(err, watchcache.ErrEnded) {
		t.Errorf("got %v", err)
	}
}
