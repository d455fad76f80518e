package read

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// metered returns a read with a meter and an expensive selector.
func metered(t *testing.T, objects int, slots *fair.Pool) (*read, watchcache.Snapshot) {
	t.Helper()
	r, snapshot := pageOf(t, objects, 0)
	r.derived = newDerived(t, 1<<20)
	selecting(t, r, "labelSelector="+expensiveSelector())
	r.Client = exchange.Nobody{}
	r.meter = fair.NewMeter(t.Context(), r.Request, &fair.Slots{Short: slots, Long: slots}, r.Kind != wire.Watch)
	return r, snapshot
}

// Once the objects of a watch's state are selected, its first piece is written without a slot: others
// may have them all.
func TestFirstPieceOfAStateNeedsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := fair.NewPool(1, false)
		r, snapshot := metered(t, 5000, slots)
		state := watch.Initial{Selected: r.selected(), State: snapshot.Tree}
		for range state.Spans(&r.meter) {
			if err := slots.Take(t.Context(), "other", 1); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- r.meter.Spend(fair.WriteSize) }()
			if synctest.Wait(); len(ended) == 0 {
				t.Error("it waits for a slot")
			}
			slots.Give("other", 1)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			r.meter.ReleaseSlot()
			return
		}
		t.Error("nothing is selected")
	})
}

// A walk through a large collection ends its turn, and continues in a later turn.
func TestExpensiveReadTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := fair.NewPool(1, false)
		r, snapshot := metered(t, 5000, slots)
		if err := slots.Take(t.Context(), "other", 1); err != nil {
			t.Fatal(err)
		}
		from, to := r.filter.KeyRange(r.resource)
		done := make(chan error, 1)
		go func() {
			_, err := r.page(snapshot, from, to)
			r.meter.End()
			done <- err
		}()
		turns := 0
		for other := "other"; ; turns++ {
			synctest.Wait() // until the read waits for its turn, or ends
			next := make(chan error, 1)
			go func() { next <- slots.Take(t.Context(), other, 1) }()
			if synctest.Wait(); len(next) > 0 {
				t.Fatal("two have a turn")
			}
			slots.Give(other, 1)
			if err := <-next; err != nil {
				t.Fatalf("no turn after the read's: %v", err)
			}
			select {
			case err := <-done:
				if err != nil || turns < 10 {
					t.Errorf("%d turns, %v", turns, err)
				}
				slots.Give(other, 1)
				return
			default:
			}
		}
	})
}

// A read that is given up has no response: no part of a list, and no part of a watch's state. It
// holds nothing afterwards.
func TestReadIsGivenUp(t *testing.T) {
	for name, after := range map[string]int64{"at once": 0, "in the middle": 5 * fair.Turn} {
		for what, answer := range map[string]func(*read, watchcache.Snapshot) (any, error){
			"list": func(r *read, snapshot watchcache.Snapshot) (any, error) {
				from, to := r.filter.KeyRange(r.resource)
				resp, err := r.page(snapshot, from, to)
				if resp == nil {
					return nil, err
				}
				return resp, err
			},
			"watch": func(r *read, snapshot watchcache.Snapshot) (any, error) {
				var out strings.Builder
				cursor, err := r.cache.WatchAfter(r.filter, snapshot)
				if err != nil {
					return nil, err
				}
				p := watch.Params{
					Plan: watch.Plan{Filter: r.filter, Form: r.form, Bookmarks: true},
					Feed: watch.Feed{
						Cache: r.cache, Cursor: cursor, Meter: &r.meter, Lag: new(watch.Lag),
						Initial: &watch.Initial{Selected: r.selected(), State: snapshot.Tree},
					},
					Server: watch.Server{Draining: t.Context()},
				}
				w := watch.New(p)
				defer w.Close()
				if !w.Open(t.Context(), &exchange.ChunkWriter{To: &out}) {
					err = r.meter.Failed()
				}
				if out.Len() == 0 {
					return nil, err
				}
				return out.String(), err
			},
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				slots := fair.NewPool(1, false)
				r, snapshot := metered(t, 5000, slots)
				ctx, cancel := context.WithCancel(t.Context())
				r.meter = fair.NewMeter(&endsLater{ctx, cancel, after / fair.Turn}, r.Request, &fair.Slots{Short: slots, Long: slots}, false)
				got, err := answer(r, snapshot)
				r.meter.End()
				if got != nil || err == nil {
					t.Errorf("answered with %v, %v", got, err)
				}
				if slots.Taken() != 0 {
					t.Error("something is held")
				}
			})
		}
	}
}

// endsLater is a context that ends after some calls of Err.
type endsLater struct {
	context.Context
	cancel context.CancelFunc
	looks  int64
}

// Err implements context.Context.
func (e *endsLater) Err() error {
	if e.looks--; e.looks < 0 {
		e.cancel()
	}
	return e.Context.Err()
}

// expensiveSelector returns an expensive selector that selects everything.
func expensiveSelector() string {
	var terms []string
	for i := range 900 {
		terms = append(terms, fmt.Sprint("!none", i))
	}
	return strings.Join(terms, ",")
}
