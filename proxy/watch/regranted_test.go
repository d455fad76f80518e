package watch

import (
	"bytes"
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// If the grants change, a watch ends with 410 before the next event. So it does in a pump, behind,
// and with an event larger than a piece.
func TestRegranted(t *testing.T) {
	for name, changes := range map[string]int{"one event": 1, "many events": 2 * deltasMax} {
		for _, pumped := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c, initial := cachetest.ConfigMaps(t, 1)
				p := paramsOf(t, c, initial)
				var regranted atomic.Bool
				p.Regranted = regranted.Load
				var written bytes.Buffer
				out := &exchange.ChunkWriter{To: &written}
				w := opened(t, p, out)
				var s *Scratch
				if pumped {
					s = NewScratch()
					defer s.Free()
				}
				if on, _ := w.Turn(t.Context(), out, s); !on || written.Len() > 0 {
					t.Fatalf("goes on: %v, wrote %s", on, written.Bytes())
				}
				for i := range changes {
					cachetest.Apply(t, c, cachetest.ConfigMap(t, 0, int(p.Start)+1+i))
				}
				regranted.Store(true)
				on, _ := w.Turn(t.Context(), out, s)
				if on || bytes.Contains(written.Bytes(), []byte("MODIFIED")) || !bytes.Contains(written.Bytes(), []byte(`"code":410`)) || w.Reason() != endRegranted {
					t.Errorf("goes on: %v, reason %s, wrote %s", on, w.Reason(), written.Bytes())
				}
			})
		}
	}
}

// minutely is a client that reads a piece a minute.
type minutely struct{ bytes.Buffer }

// Write implements io.Writer.
func (s *minutely) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return s.Buffer.Write(p)
}

// A slow client does not get the rest of the initial state if the grants change, or if it has lost
// its access.
func TestStateEnds(t *testing.T) {
	// At worst a review begins before from, its verdict is seen a piece later, and the next review
	// needs two further pieces. The last piece is written before the end.
	const from, most = 90 * time.Second, 5 * time.Minute
	for _, test := range []struct {
		name, reason string
		revoked      error
		regranted    bool
	}{
		{"regranted", endRegranted, nil, true},
		{"revoked", endRevoked, exchange.ErrRevoked, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, initial := cachetest.ConfigMaps(t, 5000)
				p := paramsOf(t, c, initial)
				began := time.Now()
				p.State = func() iter.Seq[tree.Span] { return initial.Spans("", "") }
				meter := fair.NewMeter(t.Context(), &exchange.Request{}, fair.NewSlots(1<<20), false)
				p.Meter, p.Recheck = &meter, 15*time.Second
				p.Review = func(context.Context) error {
					if time.Since(began) >= from {
						return test.revoked
					}
					return nil
				}
				p.Regranted = func() bool { return test.regranted && time.Since(began) >= from }
				out := &minutely{}
				w := New(p)
				w.Run(t.Context(), &exchange.ChunkWriter{To: out})
				if took := time.Since(began); took > most || w.Reason() != test.reason {
					t.Errorf("it ended after %v: %s", took, w.Reason())
				}
				if expired := bytes.Contains(out.Bytes(), []byte(`"code":410`)); expired != test.regranted {
					t.Errorf("it ends with 410: %v", expired)
				}
			})
		})
	}
}
