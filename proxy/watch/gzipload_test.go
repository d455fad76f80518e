package watch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// incompressible returns a ConfigMap of random text. Compressed, it has about three quarters of its
// length.
func incompressible(t *testing.T, rv uint64, size int) *object.Object {
	t.Helper()
	random, text := rand.New(rand.NewPCG(rv, 0)), make([]byte, size)
	for i := range text {
		text[i] = byte('0' + random.IntN(64))
	}
	resource := cachetest.Resource()
	o, err := resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"c","namespace":"a","uid":"u","resourceVersion":"%d"},"data":{"p":%q}}`, rv, text))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Clients that do not read share one copy of a large event. An event that fits into a piece is
// compressed once, too, even if it is hardly smaller then.
func TestCompressedLargeEvent(t *testing.T) {
	for _, size := range []int{60 << 10, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			c, initial := cachetest.Roomy(t)
			var events Events
			form := &countedForm{Form: paramsOf(t, c, initial).Form}
			ctx, leave := context.WithCancel(t.Context())
			client := &gated{take: make(chan struct{})}
			var watches sync.WaitGroup
			const n = 20
			for range n {
				p := paramsOf(t, c, initial)
				p.Form, p.Events, p.Compressed = form, &events, true
				watches.Go(func() { New(p).Run(ctx, &exchange.ChunkWriter{To: client, Unchunked: true}) })
			}
			synctest.Wait()
			cachetest.Apply(t, c, incompressible(t, 2, size))
			synctest.Wait()
			for range n { // the header of each
				client.take <- struct{}{}
				synctest.Wait()
			}
			if form.n != 1 {
				t.Errorf("%d bytes: compressed %d times for %d watches", size, form.n, n)
			}
			leave()
			close(client.take)
			watches.Wait()
		})
	}
}

// slotForm records the slots that are taken while an event is written.
type slotForm struct {
	wire.Form
	slots *fair.Pool
	taken int64
}

func (f *slotForm) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	f.taken = max(f.taken, f.slots.Taken())
	return f.Form.AppendEvent(dst, kind, o)
}

func (*slotForm) SplitEvent(dst []byte, _ string, _ wire.Object) (head, body, tail []byte, ok bool) {
	return dst, nil, nil, false
}

// stateOf returns the parameters of a compressed watch that begins with a state.
func stateOf(t *testing.T, slots *fair.Pool) (p Params, objects int) {
	t.Helper()
	const many = 20_000
	c, initial := cachetest.ConfigMaps(t, many)
	meter := fair.NewMeter(t.Context(), &exchange.Request{}, &fair.Slots{Short: slots, Long: slots}, false)
	p = paramsOf(t, c, initial)
	p.Meter, p.Events, p.Compressed = &meter, new(Events), true
	p.Initial = begins(p, initial)
	return p, many
}

// While a Table waits for its rows, it has no slot, because they may take seconds. If they are still
// late after that, it waits for each of them, and only the slot of its last write may last a moment.
func TestCompressedTableHoldsNoSlot(t *testing.T) {
	for _, there := range []bool{true, false} {
		slots := fair.NewPool(1, false)
		p, _ := stateOf(t, slots)
		form := &slotForm{Form: p.Form, slots: slots}
		p.Form, p.Choice = form, wire.Choice{Table: true}
		last := p.Start // of the objects
		p.Start += 1000 // the resource is quiet, so its rows do not get there
		p.Rows = awaits(func(rv uint64) bool {
			if slots.Taken() > 0 || rv > last {
				t.Errorf("it waits for %d, with %d slots; the last object has %d", rv, slots.Taken(), last)
			}
			return there
		})
		w := New(p)
		if !w.Open(t.Context(), &exchange.ChunkWriter{To: io.Discard, Unchunked: true}) || there && form.taken != 1 {
			t.Errorf("its rows are there: %t; it has %d slots", there, form.taken)
		}
		w.Close()
	}
}

// Old events, which a watch that catches up needs, do not replace new ones.
func TestOldEventsAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events Events
		for want, age := range []time.Duration{eventLife + time.Millisecond, eventLife} {
			d := &watchcache.Delta{Type: watchcache.Added, RV: 1, Object: cachetest.ConfigMap(t, 0, 1), Received: watchcache.Moment(time.Now().Add(-age))}
			e := events.find(d, wire.Choice{}, true)
			e.segment = wire.EventSegment([]byte("event"))
			events.keep(e, d)
			if got := len(events.shards[1].kept); got != want {
				t.Errorf("%d events are kept instead of %d", got, want)
			}
		}
	})
}

// The same change may be ADDED for one selector and MODIFIED or DELETED for another, and each form has
// its own bytes. Watches that differ in any of these share nothing.
func TestEventsAreKeptApart(t *testing.T) {
	var events Events
	one, other := cachetest.ConfigMap(t, 0, 1), cachetest.ConfigMap(t, 0, 1)
	seen := map[*event]bool{}
	n := 0
	for _, o := range []*object.Object{one, other} {
		for _, rv := range []uint64{1, 17} { // of the same shard
			for _, kind := range []watchcache.EventType{watchcache.Added, watchcache.Modified, watchcache.Deleted} {
				for _, choice := range []wire.Choice{{}, {Partial: true}, {MediaType: wire.Protobuf}, {MediaType: wire.Protobuf, Partial: true}} {
					for _, compressed := range []bool{true, false} {
						d := &watchcache.Delta{Type: kind, RV: rv, Object: o}
						e := events.find(d, choice, compressed)
						seen[e] = true
						if n++; len(seen) != n || events.find(d, choice, compressed) != e {
							t.Fatalf("an event is shared, or not found again: %v %v %t", d, choice, compressed)
						}
					}
				}
			}
		}
	}
}
