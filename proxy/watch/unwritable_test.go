package watch

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// withoutOne is a form that cannot write one of the objects.
type withoutOne struct {
	wire.Form
	key string
}

var errOne = errors.New("it cannot be written")

func (f withoutOne) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	if o.Key() == f.key {
		return dst, errOne
	}
	return f.Form.AppendEvent(dst, kind, o)
}

// A watch ends at an object that it cannot write, and tells it once: in the state, in a compressed
// part of the state, in an event, and in an event with an earlier content.
func TestUnwritableObjectEndsTheWatch(t *testing.T) {
	for kind, c := range map[string]struct {
		state, compressed bool
		event             watchcache.EventType
	}{
		"state":            {true, false, watchcache.Added},
		"compressed state": {true, true, watchcache.Added},
		"event":            {false, false, watchcache.Modified},
		"compressed event": {false, true, watchcache.Modified},
		"removal":          {false, false, watchcache.Deleted},
	} {
		t.Run(kind, func(t *testing.T) {
			cache, initial := cachetest.ConfigMaps(t, 3)
			p := paramsOf(t, cache, initial)
			form := withoutOne{p.Form, "a/c-000001"}
			p.Form, p.Compressed, p.Events = form, c.compressed, new(Events)
			meter := fair.NewMeter(t.Context(), &exchange.Request{}, nil, false)
			p.Meter = &meter
			if c.state {
				p.Initial = begins(p, initial)
			}
			if c.state && c.compressed {
				p.Initial.Derived = derived.New(1<<20, prometheus.NewRegistry())
				defer p.Initial.Derived.Close()
			}
			told := 0
			p.Owner = &owner{unwritable: func() { told++ }}
			w := New(p)
			defer w.Close()
			out := &exchange.ChunkWriter{To: io.Discard}
			if on := w.Open(t.Context(), out); on == c.state {
				t.Fatalf("it opens: %t", on)
			}
			switch c.event {
			case watchcache.Modified:
				cachetest.Apply(t, cache, cachetest.ConfigMap(t, 1, 5))
				w.Step(t.Context(), out, nil)
			case watchcache.Deleted:
				removal := watchcache.Change{Deleted: true, Object: cachetest.ConfigMap(t, 1, 5)}
				if err := cache.Writer().Apply([]watchcache.Change{removal}, time.Now()); err != nil {
					t.Fatal(err)
				}
				w.Step(t.Context(), out, nil)
			}
			if told != 1 || w.Reason() != endUnwritable {
				t.Errorf("told %d times, %q", told, w.Reason())
			}
		})
	}
}
