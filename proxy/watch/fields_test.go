package watch

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// A watch with some fields of its objects gets an event only if it changes one of these fields. All
// watches of the same fields together find out once. An event that is not sent has no lag.
func TestEventsOfFields(t *testing.T) {
	fields := projection.Keep([]projection.Path{{{Key: "metadata"}, {Key: "labels"}}})
	const n = 3
	for _, c := range []struct {
		name               string
		pumped, compressed bool
		partial            bool
	}{{"plain", false, false, false}, {"pumped", true, false, false}, {"compressed", false, true, false}, {"metadata", false, false, true}} {
		synctest.Test(t, func(t *testing.T) {
			cache, initial := cachetest.Roomy(t)
			choice := wire.Choice{Fields: fields, Partial: c.partial}
			form := &countedForm{Form: wire.NewForm(choice, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"})}
			events, lag := new(Events), new(Lag)
			var got [n]bytes.Buffer
			var outs []*exchange.ChunkWriter
			var watches []*Watch
			for i := range n {
				p := paramsOf(t, cache, initial)
				p.Choice, p.Form, p.Events, p.Compressed, p.Lag = choice, form, events, c.compressed, lag
				outs = append(outs, &exchange.ChunkWriter{To: &got[i], Unchunked: true})
				watches = append(watches, opened(t, p, outs[i]))
			}
			s := NewScratch()
			defer s.Free()
			turn := func() {
				time.Sleep(time.Millisecond)
				for i, w := range watches {
					pumped := s
					if !c.pumped {
						pumped = nil
					}
					if on, behind := w.Step(t.Context(), outs[i], pumped); !on || behind {
						t.Fatal(w.Reason())
					}
				}
				s.Written()
			}
			turn() // what is due at first
			for rv, change := range []struct{ label, data string }{{"1", "a"}, {"1", "bb"}, {"2", "bb"}, {"2", "c"}, {"2", "dd"}, {"1", "dd"}} {
				cachetest.Apply(t, cache, ofSize(t, uint64(2+rv), change.label, len(change.data)))
				turn()
			}
			if err := cache.Writer().Apply([]watchcache.Change{{Deleted: true, Object: ofSize(t, 8, "1", 2)}}, cachetest.BeforeSleep(0)); err != nil {
				t.Fatal(err)
			}
			turn()
			var want strings.Builder
			for _, e := range []struct {
				kind string
				rv   int
				x    string
			}{{"ADDED", 2, "1"}, {"MODIFIED", 4, "2"}, {"MODIFIED", 7, "1"}, {"DELETED", 8, "1"}} {
				kind := `"kind":"ConfigMap","apiVersion":"v1"`
				if c.partial {
					kind = `"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1"`
				}
				fmt.Fprintf(&want, `{"type":%q,"object":{%s,"metadata":{"name":"c","namespace":"a","uid":"u","resourceVersion":"%d","labels":{"x":%q}}}}`+"\n", e.kind, kind, e.rv, e.x)
			}
			for i := range got {
				text := got[i].String()
				if c.compressed {
					z, err := gzip.NewReader(&got[i])
					if err != nil {
						t.Fatal(err)
					}
					plain, _ := io.ReadAll(z) // it has not ended
					text = string(plain)
				}
				if text != want.String() {
					t.Errorf("%s: watch %d got\n%s\nwant\n%s", c.name, i, text, want.String())
				}
			}
			if form.n != 4 {
				t.Errorf("%s: events were made %d times, want once for each that is sent", c.name, form.n)
			}
			if delivered, _ := totals(&lag.Prompt); delivered != 4*n {
				t.Errorf("%s: %d deliveries have a lag, want %d", c.name, delivered, 4*n)
			}
		})
	}
}

// A large event that no log has needs room while it is written, once for all watches that write it.
// A watch without room ends.
func TestLargeEventsOfFieldsNeedRoom(t *testing.T) {
	choice := wire.Choice{Fields: projection.Drop([]projection.Path{{{Key: "metadata"}, {Key: "labels"}}})}
	cache, initial := cachetest.Roomy(t)
	events, claimed, most, room := new(Events), 0, 0, true
	watchOf := func(to writerFunc) func() bool {
		p := paramsOf(t, cache, initial)
		p.Choice, p.Form, p.Events = choice, wire.NewForm(choice, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}), events
		hold := func(size int64) error {
			if size < 300<<10 {
				t.Errorf("a claim of %d bytes", size)
			}
			if !room {
				return io.ErrShortBuffer
			}
			claimed++
			most = max(most, claimed)
			return nil
		}
		p.Room = &space{hold: hold, free: func(int64) { claimed-- }}
		p.Owner = &owner{unwritable: func() { t.Error("upstream is to answer") }}
		out := &exchange.ChunkWriter{To: to, Unchunked: true}
		w := opened(t, p, out)
		return func() bool {
			on, _ := w.Step(t.Context(), out, nil)
			return on
		}
	}
	written := 0
	second := watchOf(func(p []byte) (int, error) {
		written += len(p)
		return len(p), nil
	})
	nested := false
	first := watchOf(func(p []byte) (int, error) {
		if claimed != 1 {
			t.Errorf("%d claims while it writes", claimed)
		}
		if !nested {
			nested = true
			second()
		}
		written += len(p)
		return len(p), nil
	})
	cachetest.Apply(t, cache, ofSize(t, 2, "1", 300<<10))
	if on := first(); !on || claimed != 0 || most != 1 || written < 2*300<<10 {
		t.Errorf("goes on: %t; %d claims are left, at most %d at a time, %d bytes", on, claimed, most, written)
	}
	room = false
	cachetest.Apply(t, cache, ofSize(t, 3, "1", 301<<10))
	if first() {
		t.Error("it goes on without room")
	}
}
