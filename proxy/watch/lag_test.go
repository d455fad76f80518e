package watch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
)

// totals returns the number of deliveries in a histogram and the sum of their lags.
func totals(c *LagCounts) (count uint64, seconds float64) {
	count, seconds, _ = c.Totals()
	return count, seconds
}

// scratch is what a pump's watch gets. Others get none.
func scratch(t *testing.T, pumped bool) *Scratch {
	t.Helper()
	if !pumped {
		return nil
	}
	s := NewScratch()
	t.Cleanup(s.Free)
	return s
}

// The lag of an event is the time from its arrival until it was written. Events that arrived before
// the watch opened do not count. The initial state does not count either.
func TestDeliveryLag(t *testing.T) {
	for name, pumped := range map[string]bool{"pumped": true, "not pumped": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, initial := cachetest.ConfigMaps(t, 3)
				p := paramsOf(t, c, initial)
				p.Lag, p.Lifetime = new(Lag), time.Hour
				time.Sleep(time.Minute)
				cachetest.Apply(t, c, cachetest.ConfigMap(t, 0, 10)) // before the watch opens
				time.Sleep(time.Minute)
				var written bytes.Buffer
				out := &exchange.ChunkWriter{To: &written}
				w := opened(t, p, out)
				s := scratch(t, pumped)
				turn := func() {
					if on, _ := w.Step(t.Context(), out, s); !on {
						t.Fatal("it ends")
					}
					if pumped {
						s.Written()
					}
				}
				turn()
				if n, _ := totals(&p.Lag.Prompt); n != 0 {
					t.Errorf("%d deliveries from before the watch count", n)
				}
				cachetest.Apply(t, c, cachetest.ConfigMap(t, 0, 20), cachetest.ConfigMap(t, 1, 21))
				time.Sleep(30 * time.Millisecond)
				turn()
				cachetest.Apply(t, c, cachetest.ConfigMap(t, 2, 30))
				time.Sleep(3 * time.Second)
				turn()
				count, seconds, within := p.Lag.Prompt.Totals()
				if count != 3 || seconds != 3.06 || within[0.025] != 0 || within[0.05] != 2 || within[2.5] != 2 || within[5] != 3 {
					t.Errorf("%d deliveries, %v s, %v", count, seconds, within)
				}
				if n, _ := totals(&p.Lag.Slow); n != 0 {
					t.Errorf("%d are slow", n)
				}
				if got := p.Lag.Bytes.Load(); got != uint64(written.Len()) || got == 0 {
					t.Errorf("%d bytes of %d", got, written.Len())
				}
			})
		})
	}
}

// Deliveries that wait for their client are counted separately until the watch has caught up.
func TestLagOfSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, initial := cachetest.Roomy(t)
		p := paramsOf(t, c, initial)
		p.Lag, p.Lifetime = new(Lag), time.Hour
		slow := &slowly{}
		out := &exchange.ChunkWriter{To: slow}
		w := opened(t, p, out)
		deliver := func(rv int) {
			cachetest.Apply(t, c, cachetest.ConfigMap(t, 0, rv))
			if on, behind := w.Step(t.Context(), out, nil); !on || behind {
				t.Fatalf("goes on: %t, behind: %t", on, behind)
			}
		}
		deliver(10)
		slow.wait = 2 * time.Second
		deliver(11)
		slow.wait = 0
		deliver(12)
		w.ClientWaited()
		deliver(13)
		deliver(14)
		prompt, _ := totals(&p.Lag.Prompt)
		late, seconds := totals(&p.Lag.Slow)
		if prompt != 3 || late != 2 || seconds != 2 {
			t.Errorf("%d prompt and %d slow deliveries, the latter with %v s", prompt, late, seconds)
		}
	})
}

// A watch is not slow if it waits for anything except its client, such as a Table for its rows.
func TestLateRowsAreNotTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, initial := cachetest.ConfigMaps(t, 1)
		p := paramsOf(t, c, initial)
		p.Lag, p.Lifetime = new(Lag), time.Hour
		p.Form = lateForm{p.Form}
		out := &exchange.ChunkWriter{To: io.Discard}
		w := opened(t, p, out)
		cachetest.Apply(t, c, cachetest.ConfigMap(t, 0, 10))
		if on, behind := w.Step(t.Context(), out, nil); !on || behind {
			t.Fatalf("goes on: %t, behind: %t", on, behind)
		}
		prompt, seconds := totals(&p.Lag.Prompt)
		if late, _ := totals(&p.Lag.Slow); prompt != 1 || seconds != 3 || late != 0 {
			t.Errorf("%d prompt deliveries with %v s and %d slow ones", prompt, seconds, late)
		}
	})
}

// lateForm is a form whose events need late data.
type lateForm struct{ wire.Form }

func (f lateForm) AppendEvent(dst []byte, kind string, o wire.Object) ([]byte, error) {
	time.Sleep(3 * time.Second)
	return f.Form.AppendEvent(dst, kind, o)
}

// slowly is a client that delays each write.
type slowly struct{ wait time.Duration }

func (s *slowly) Write(p []byte) (int, error) {
	time.Sleep(s.wait)
	return len(p), nil
}

// Each kind of end of a watch has its own reason.
func TestReasons(t *testing.T) {
	for want, end := range map[string]func(p *Params, out *exchange.ChunkWriter, gone func()) (later func()){
		endTimeout: func(p *Params, _ *exchange.ChunkWriter, _ func()) func() {
			p.Lifetime = time.Second
			return nil
		},
		endClient: func(_ *Params, _ *exchange.ChunkWriter, gone func()) func() { return gone },
		endStalled: func(p *Params, out *exchange.ChunkWriter, _ func()) func() {
			out.To = failing{ErrStalled}
			return func() { cachetest.Apply(t, p.Cache, cachetest.ConfigMap(t, 0, 10)) }
		},
		endDrain: func(p *Params, _ *exchange.ChunkWriter, _ func()) func() {
			ctx, drain := context.WithCancel(context.Background())
			p.Draining = ctx
			return drain
		},
		endRevoked: func(p *Params, _ *exchange.ChunkWriter, _ func()) func() {
			p.Owner = &owner{review: func(context.Context) error { return exchange.ErrRevoked }}
			p.Recheck = time.Minute
			return nil
		},
		endRestarted: func(p *Params, _ *exchange.ChunkWriter, _ func()) func() { return p.Cache.Writer().End },
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, initial := cachetest.ConfigMaps(t, 1)
				p := paramsOf(t, c, initial)
				p.Lifetime = time.Hour
				ctx, gone := context.WithCancel(t.Context())
				defer gone()
				out := &exchange.ChunkWriter{To: io.Discard}
				later := end(&p, out, gone)
				w := New(p)
				over := make(chan struct{})
				go func() {
					defer close(over)
					w.Run(ctx, out)
				}()
				synctest.Wait()
				if later != nil {
					later()
				}
				<-over
				if got := w.Reason(); got != want {
					t.Errorf("it ended for %q", got)
				}
			})
		})
	}
	if got := New(Params{}).Reason(); got != endPanic {
		t.Errorf("without a reason it ended for %q", got)
	}
}

// failing is a client whose writes fail.
type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, errors.Join(f.error) }
