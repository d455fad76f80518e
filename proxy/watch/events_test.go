package watch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httputil"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// ofSize returns an object with a label.
func ofSize(t *testing.T, rv uint64, label string, size int) *object.Object {
	t.Helper()
	resource := cachetest.Resource()
	o, err := resource.ParseObject(append(append([]byte(nil), `{"metadata":{"name":"c","namespace":"a","uid":"u","resourceVersion":"`...),
		string(rune('0'+rv))+`","labels":{"x":"`+label+`"}},"data":{"p":"`+strings.Repeat("y", size)+`"}}`...))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Watches share the bytes of a large event that are not the cache's own, even if they come one
// after another: an object in another form, and an object that leaves a selection.
func TestLargeEventsAreShared(t *testing.T) {
	const n = 5
	for name, c := range map[string]struct {
		size   int
		choice wire.Choice
		leaves bool
		made   int
	}{
		"small, metadata":               {1 << 10, wire.Choice{Partial: true}, false, n},
		"metadata":                      {20 << 10, wire.Choice{Partial: true}, false, 1},
		"larger than a piece, metadata": {100 << 10, wire.Choice{Partial: true}, false, 1},
		"larger than a shard, metadata": {2 << 20, wire.Choice{Partial: true}, false, 1},
		"the cache's form":              {2 << 20, wire.Choice{}, false, 0},
		"leaves":                        {100 << 10, wire.Choice{}, true, 1},
		"larger than a shard, leaves":   {2 << 20, wire.Choice{}, true, 1},
		"small, leaves":                 {1 << 10, wire.Choice{}, true, n},
	} {
		t.Run(name, func(t *testing.T) {
			cache, _ := cachetest.Roomy(t)
			cachetest.Apply(t, cache, ofSize(t, 2, "1", c.size))
			initial := cachetest.Snapshot(t, cache)
			selector, err := labels.Parse("x=1")
			if err != nil {
				t.Fatal(err)
			}
			f, err := object.NewFilter(cache.Resource(), "a", selector, nil)
			if err != nil {
				t.Fatal(err)
			}
			form := &countedForm{Form: wire.NewForm(c.choice, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"})}
			events := new(Events)
			var watches []*Watch
			var outs []*exchange.ChunkWriter
			var got [n]strings.Builder
			for i := range n {
				p := paramsOf(t, cache, initial)
				p.Cursor.Close()
				if p.Cursor, err = cache.WatchAfter(f, initial); err != nil {
					t.Fatal(err)
				}
				p.Filter, p.Form, p.Choice, p.Events = f, form, c.choice, events
				outs = append(outs, &exchange.ChunkWriter{To: &got[i], Unchunked: true})
				watches = append(watches, opened(t, p, outs[i]))
			}
			label, kind := "1", `"MODIFIED"`
			if c.leaves {
				label, kind = "2", `"DELETED"`
			}
			cachetest.Apply(t, cache, ofSize(t, 3, label, c.size))
			for i, w := range watches {
				for behind := true; behind; {
					var on bool
					if on, behind = w.Step(t.Context(), outs[i], nil); !on {
						t.Fatal(w.Reason())
					}
				}
				runtime.GC() // nobody writes the event any more
			}
			if form.n != c.made {
				t.Errorf("made %d times instead of %d", form.n, c.made)
			}
			for i := range got {
				if text := got[i].String(); text != got[0].String() || strings.Count(text, kind) != 1 || !strings.Contains(text, `"resourceVersion":"3"`) {
					t.Errorf("watch %d: %.200s", i, text)
				}
			}
		})
	}
}

// panicsOnce is a form that panics at its first event.
type panicsOnce struct {
	wire.Form
	once sync.Once
}

func (p *panicsOnce) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	p.once.Do(func() { panic("once") })
	return p.Form.AppendEvent(dst, kind, o)
}

// If making an event panics, no watch that shares the event goes on without it.
func TestWatchesEndAfterAPanic(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		cache, initial := cachetest.Roomy(t)
		choice := wire.Choice{Partial: true}
		form := &panicsOnce{Form: wire.NewForm(choice, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"})}
		events, unwritable := new(Events), 0
		out := &exchange.ChunkWriter{To: io.Discard, Unchunked: true}
		open := func() *Watch {
			p := paramsOf(t, cache, initial)
			p.Form, p.Choice, p.Events, p.Compressed = form, choice, events, compressed
			p.Owner = &owner{unwritable: func() { unwritable++ }}
			return opened(t, p, out)
		}
		first, second := open(), open()
		o := ofSize(t, 2, "1", sharedFrom)
		cachetest.Apply(t, cache, o)
		e := events.find(&watchcache.Delta{Type: watchcache.Added, RV: 2, Object: o}, choice, compressed)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			first.Step(t.Context(), out, nil)
		}()
		if on, _ := second.Step(t.Context(), out, nil); on || second.Reason() != endUnwritable || unwritable != 1 {
			t.Errorf("compressed %t: it goes on: %t, %q", compressed, on, second.Reason())
		}
		runtime.KeepAlive(e)
	}
}

// Only the latest long events are kept.
func TestFewLongEventsAreKept(t *testing.T) {
	var events Events
	for rv := range uint64(2 * longEvents) {
		d := &watchcache.Delta{Type: watchcache.Added, RV: rv, Object: cachetest.ConfigMap(t, 0, 1), Received: watchcache.Moment(cachetest.BeforeSleep(0))}
		e := events.find(d, wire.Choice{}, false)
		e.plain = make([]byte, longEvent)
		events.keep(e, d)
	}
	for i, e := range events.long.kept {
		if e == nil || e.key.rv != uint64(longEvents+i) {
			t.Errorf("the kept event %d: %+v", i, e)
		}
	}
	for i := range events.shards {
		if n := len(events.shards[i].kept); n > 0 {
			t.Errorf("shard %d keeps %d", i, n)
		}
	}
}

// tableParams returns the parameters of a watch of Tables whose events take a turn for each byte.
func tableParams(t *testing.T) (p Params, form *slotForm) {
	t.Helper()
	slots := fair.NewPool(1, false) // no room for those who may be refused
	meter := fair.NewMeter(t.Context(), &exchange.Request{}, &fair.Slots{Short: slots, Long: slots}, false)
	cache, initial := cachetest.Roomy(t)
	p = paramsOf(t, cache, initial)
	form = &slotForm{Form: p.Form, slots: slots}
	p.Form, p.Choice, p.Meter, p.Cost = form, wire.Choice{Table: true}, &meter, fair.Turn
	p.Rows = awaits(func(uint64) bool { return true })
	return p, form
}

// The events of Tables take turns, after their rows have arrived. Between two events, a watch has no
// slot.
func TestEventsOfTablesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, form := tableParams(t)
		slots := form.slots
		arrived := make(chan struct{})
		p.Rows = awaits(func(uint64) bool {
			if slots.Taken() > 0 {
				t.Error("it waits for a row with a slot")
			}
			<-arrived
			return true
		})
		out := &exchange.ChunkWriter{To: io.Discard, Unchunked: true}
		w := opened(t, p, out)
		cachetest.Apply(t, p.Cache, cachetest.Sized(t, 2, 100))
		ended := make(chan bool)
		go func() {
			on, _ := w.Step(t.Context(), out, nil)
			ended <- on
		}()
		synctest.Wait()
		if !slots.Try("other", 1) {
			t.Fatal("no slot is free")
		}
		close(arrived)
		synctest.Wait()
		if form.taken > 0 {
			t.Error("the event is written without a turn")
		}
		slots.Give("other", 1)
		if !<-ended || form.taken != 1 || slots.Taken() != 0 {
			t.Errorf("%q; %d slots were taken, and %d are", w.Reason(), form.taken, slots.Taken())
		}
	})
}

// A row may be so much longer than its object that it needs room, and is written at once. The watch has
// no slot meanwhile.
func TestSlotOfAWideRow(t *testing.T) {
	p, form := tableParams(t)
	slots := form.slots
	p.Form, p.Compressed = &wideForm{form}, true
	p.Room = &space{hold: func(int64) error {
		if slots.Taken() > 0 {
			t.Error("it waits for room with a slot")
		}
		return nil
	}}
	written := 0
	out := &exchange.ChunkWriter{Unchunked: true, To: writerFunc(func(b []byte) (int, error) {
		if slots.Taken() > 0 {
			t.Error("it writes with a slot")
		}
		written += len(b)
		return len(b), nil
	})}
	w := opened(t, p, out)
	cachetest.Apply(t, p.Cache, cachetest.Sized(t, 2, 100))
	if on, _ := w.Step(t.Context(), out, nil); !on || form.taken != 1 || written < wideRow {
		t.Errorf("it goes on: %t; %d slots were taken; %d bytes", on, form.taken, written)
	}
}

const wideRow = 3 * exchange.PieceSize

// wideForm writes events that cannot be compressed.
type wideForm struct{ *slotForm }

func (f *wideForm) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	noise := make([]byte, wideRow)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	dst, err := f.slotForm.AppendEvent(dst, kind, o)
	return append(dst, noise...), err
}

// A pump leaves a long gap to the goroutine in which the watch catches up. The watch gets each event
// once.
func TestLongGap(t *testing.T) {
	cache, initial := cachetest.Roomy(t)
	p := paramsOf(t, cache, initial)
	p.Cursor.Close()
	selector, err := labels.Parse("!not")
	if err != nil {
		t.Fatal(err)
	}
	if p.Filter, err = object.NewFilter(cache.Resource(), "", selector, nil); err != nil {
		t.Fatal(err)
	}
	if p.Cursor, err = cache.WatchAfter(p.Filter, initial); err != nil {
		t.Fatal(err)
	}
	const many = 3000
	var objects []*object.Object
	for i := range many {
		objects = append(objects, cachetest.ConfigMap(t, i, 10+i))
	}
	if err := cache.Writer().Replace(objects, 10+many, cachetest.BeforeSleep(0)); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	out := &exchange.ChunkWriter{To: &got, Unchunked: true}
	w := opened(t, p, out)
	s := NewScratch()
	defer s.Free()
	if on, behind := w.Step(t.Context(), out, s); !on || !behind || got.Len() > 0 {
		t.Fatalf("the pump goes on: %t, is behind: %t, has written %d bytes", on, behind, got.Len())
	}
	s.Written()
	for behind := true; behind; {
		var on bool
		if on, behind = w.Step(t.Context(), out, nil); !on {
			t.Fatal(w.Reason())
		}
	}
	for i := range many {
		if n := strings.Count(got.String(), fmt.Sprintf(`"name":"c-%06d"`, i)); n != 1 {
			t.Fatalf("object %d came %d times", i, n)
		}
	}
}

// A panic in a turn leaves no slot behind.
func TestSlotAfterAPanic(t *testing.T) {
	p, form := tableParams(t)
	p.Form = &panicsOnce{Form: form}
	w := New(p)
	func() {
		defer func() {
			if recover() == nil || form.slots.Taken() != 0 {
				t.Errorf("no panic, or %d slots are taken", form.slots.Taken())
			}
		}()
		cachetest.Apply(t, p.Cache, cachetest.Sized(t, 2, 100))
		w.Run(t.Context(), &exchange.ChunkWriter{To: io.Discard, Unchunked: true})
	}()
}

// A large event of which a watch has the only copy needs room until it is written. The watch waits for
// room without a slot, and for its client. Without room it ends.
func TestLargeEventsOfOneWatchNeedRoom(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		p, form := tableParams(t)
		slots := form.slots
		p.Compressed = compressed
		var room, held int64 = 1 << 20, 0
		hold := func(size int64) error {
			if slots.Taken() > 0 {
				t.Error("it waits for room with a slot")
			}
			if held += size; held > room {
				return context.DeadlineExceeded
			}
			return nil
		}
		p.Room = &space{hold: hold, free: func(size int64) { held -= size }}
		p.Owner = &owner{unwritable: func() { t.Error("the form counts as unwritable") }}
		writes := 0
		out := &exchange.ChunkWriter{Unchunked: true, To: writerFunc(func(b []byte) (int, error) {
			if slots.Taken() > 0 || held == 0 && !compressed {
				t.Errorf("%d bytes are written with %d slots, %d bytes of room", len(b), slots.Taken(), held)
			}
			writes++
			return len(b), nil
		})}
		w := opened(t, p, out)
		for i, size := range []int{exchange.PieceSize + 1<<10, 2 << 20} {
			cachetest.Apply(t, p.Cache, cachetest.Sized(t, uint64(2+i), size)) //nolint:gosec // small
			on, behind := true, true
			for on && behind {
				on, behind = w.Step(t.Context(), out, nil)
			}
			if fits := int64(size) < room; on != fits || form.taken != 1 || fits && (held != 0 || writes == 0 && !compressed) {
				t.Errorf("of %d bytes: it goes on: %t; %d slots were taken, %d bytes are held, %d writes", size, on, form.taken, held, writes)
			}
		}
		if w.Reason() != endUnwritable {
			t.Errorf("it ended by %q", w.Reason())
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// An initial state in another form takes turns by what it costs, compressed or not.
func TestStatesInOtherFormsTakeTurns(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			slots := fair.NewPool(1, false)
			p, objects := stateOf(t, slots)
			form := &countedForm{Form: wire.NewForm(wire.Choice{Partial: true}, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"})}
			p.Form, p.Choice, p.Compressed, p.Cost = form, wire.Choice{Partial: true}, compressed, fair.Turn // for each byte
			if !slots.Try("other", 1) {
				t.Fatal("no slot is free")
			}
			w := New(p)
			defer w.Close()
			ended := make(chan bool)
			go func() { ended <- w.Open(t.Context(), &exchange.ChunkWriter{To: io.Discard, Unchunked: true}) }()
			synctest.Wait()
			if form.n > 0 {
				t.Errorf("%d objects are written without a turn", form.n)
			}
			slots.Give("other", 1)
			if !<-ended || form.n != objects || slots.Taken() != 0 {
				t.Errorf("%q; %d of %d objects; %d slots are taken", w.Reason(), form.n, objects, slots.Taken())
			}
		})
	}
}

// A large object of an initial state needs room as well, if the watch makes a copy of it.
func TestLargeObjectsOfAStateNeedRoom(t *testing.T) {
	slots := fair.NewPool(1, false)
	meter := fair.NewMeter(t.Context(), &exchange.Request{}, &fair.Slots{Short: slots, Long: slots}, false)
	cache, _ := cachetest.Roomy(t)
	cachetest.Apply(t, cache, ofSize(t, 2, "1", exchange.PieceSize+1))
	initial := cachetest.Snapshot(t, cache)
	p := paramsOf(t, cache, initial)
	p.Choice = wire.Choice{Partial: true}
	p.Form = wire.NewForm(p.Choice, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"})
	p.Meter, p.Cost, p.Initial = &meter, fair.Turn, begins(p, initial)
	claims := 0
	p.Room = &space{hold: func(int64) error {
		if claims++; slots.Taken() > 0 {
			t.Error("it waits for room with a slot")
		}
		return nil
	}}
	opened(t, p, &exchange.ChunkWriter{To: io.Discard, Unchunked: true})
	if claims != 1 {
		t.Errorf("%d claims", claims)
	}
}

// longer is a form whose events are longer than their objects.
type longer struct{ wire.Form }

func (l longer) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	dst, err := l.Form.AppendEvent(dst, kind, o)
	return append(dst, make([]byte, exchange.PieceSize)...), err
}

// A pump writes an event that becomes longer than a piece.
func TestEventBecomesLongInPump(t *testing.T) {
	cache, initial := cachetest.Roomy(t)
	p := paramsOf(t, cache, initial)
	p.Choice, p.Events = wire.Choice{Partial: true}, new(Events)
	p.Form = longer{wire.NewForm(p.Choice, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"})}
	var written strings.Builder
	out := &exchange.ChunkWriter{To: &written}
	w := opened(t, p, out)
	s := NewScratch()
	defer s.Free()
	w.Step(t.Context(), out, s) // what is due at first
	for rv := range uint64(2) {
		cachetest.Apply(t, cache, ofSize(t, 2+rv, "1", sharedFrom))
		if on, _ := w.Step(t.Context(), out, s); !on {
			t.Fatal(w.Reason())
		}
	}
	if err := out.End(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(written.String())))
	if n := strings.Count(string(got), `"type"`); err != nil || n != 2 || len(got) < 2*exchange.PieceSize {
		t.Errorf("%d events in %d bytes, %v", n, len(got), err)
	}
}
