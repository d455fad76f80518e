package watch

import (
	"errors"
	"io"
	"iter"
	"slices"
	"testing"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/tree"
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

// A watch that ends at an object names the object as the cache has it: in the state, in a
// compressed part of the state, in an event, and in an event with an earlier content.
func TestUnwritableObjectIsNamed(t *testing.T) {
	const name = "c-000001"
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
			form := withoutOne{p.Form, "a/" + name}
			p.Form, p.Compressed, p.Events = form, c.compressed, new(Events)
			meter := fair.NewMeter(t.Context(), &exchange.Request{}, nil, false)
			p.Meter = &meter
			if c.state {
				p.State = func() iter.Seq[tree.Span] { return initial.Spans("", "") }
			}
			if c.state && c.compressed {
				p.StateSegment = func(tree.Span, func(*wire.Segment) error) error { return errOne }
			}
			var named []watchcache.Delta
			p.Unwritable = func(d watchcache.Delta) { named = append(named, d) }
			w := New(p)
			defer w.Close()
			out := &exchange.ChunkWriter{To: io.Discard}
			want := watchcache.Delta{Type: c.event, RV: 2, Object: initial.Get("a/" + name)}
			if on := w.Open(t.Context(), out); on == c.state {
				t.Fatalf("it opens: %t", on)
			}
			switch c.event {
			case watchcache.Modified:
				want.RV, want.Object = 5, cachetest.ConfigMap(t, 1, 5)
				cachetest.Apply(t, cache, want.Object)
				w.Turn(t.Context(), out, nil)
			case watchcache.Deleted:
				want.RV = 9
				_ = w.put(out, watchcache.Deleted, shownAt(&want))
			}
			if !slices.Equal(named, []watchcache.Delta{want}) || w.Reason() != endUnwritable {
				t.Errorf("%+v instead of %+v, %q", named, want, w.Reason())
			}
		})
	}
}
