package exchange

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Life is the life of a server, which ends in steps: Drain, Stop and Cut.
type Life struct {
	draining step // open watches end
	stopping step // forwarded requests without a response fail
	serving  step // open connections are closed

	drainTime atomic.Int64
	drainEnd  atomic.Pointer[time.Time] // nil before the drain
}

type step struct {
	ctx context.Context //nolint:containedctx // it is the server's
	end context.CancelFunc
}

func newStep(of context.Context) step {
	ctx, end := context.WithCancel(of)
	return step{ctx, end}
}

// NewLife returns the life of a server that serves.
func NewLife() *Life {
	l := &Life{stopping: newStep(context.Background()), serving: newStep(context.Background())}
	l.draining = newStep(l.serving.ctx)
	return l
}

// Serving returns a context that ends with Cut.
func (l *Life) Serving() context.Context { return l.serving.ctx }

// Draining returns a context that ends with Drain or Cut.
func (l *Life) Draining() context.Context { return l.draining.ctx }

// Stopping returns a context that ends with Stop.
func (l *Life) Stopping() context.Context { return l.stopping.ctx }

// SetDrainTime sets the time over which watches end.
func (l *Life) SetDrainTime(d time.Duration) { l.drainTime.Store(int64(d)) }

// Drain begins to end watches, and returns the time that this takes.
func (l *Life) Drain() time.Duration {
	most := time.Duration(l.drainTime.Load())
	end := time.Now().Add(most)
	l.drainEnd.Store(&end)
	l.draining.end()
	return most
}

// Stop makes forwarded requests without a response fail.
func (l *Life) Stop() { l.stopping.end() }

// Cut closes open connections.
func (l *Life) Cut() { l.serving.end() }

// DrainShare returns a random delay, up to the rest of the drain time, after which a watch ends. So
// clients reconnect at different times.
func (l *Life) DrainShare() time.Duration {
	most := time.Duration(l.drainTime.Load())
	if end := l.drainEnd.Load(); end != nil {
		most = max(0, time.Until(*end))
	}
	return rand.N(most + 1)
}
