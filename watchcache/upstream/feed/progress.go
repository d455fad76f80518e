package feed

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Progress is how far a feed is. Reads wait for it.
type Progress struct {
	*Collection
	signs  *Signs
	writer *Writer
	tasks  *tasks

	queued  atomic.Bool   // the loop waits for its turn
	started chan struct{} // closed when the cache or err is set
	// serves is closed when the cache may serve clients. A past state must reach the present first.
	serves chan struct{}
	done   chan struct{} // closed when Run has returned
	err    error         // why there is no cache; valid after started is closed
}

func newProgress(c *Collection, signs *Signs, writer *Writer, tasks *tasks) *Progress {
	return &Progress{
		Collection: c, signs: signs, writer: writer, tasks: tasks,
		started: make(chan struct{}),
		serves:  make(chan struct{}),
		done:    make(chan struct{}),
	}
}

// Started reports whether the feed has a cache and may be filling it.
func (p *Progress) Started() bool { return closed(p.started) && p.err == nil }

// Serves reports whether the cache may serve clients as soon as it is filled.
func (p *Progress) Serves() bool { return closed(p.serves) && p.err == nil }

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Start waits until the feed has started. If the start fails, Start returns the reason.
func (p *Progress) Start(ctx context.Context) error {
	select {
	case <-p.started:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%w: start %s: %w", watchcache.ErrNotReady, p.Key, ctx.Err())
	}
}

func (p *Progress) ready(ctx context.Context) error {
	err := p.Start(ctx)
	if err != nil {
		return err
	}
	select {
	case <-p.serves:
		_, err = p.writer.cache.Snapshot()
		if _, lost := p.signs.Lost(); err != nil && !lost {
			_, err = p.writer.cache.WaitFresh(ctx, 0)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err = cmp.Or(err, p.tasks.Context.Err()); err != nil {
		return fmt.Errorf("%w: %s: %w", watchcache.ErrNotReady, p.Key, err)
	}
	return nil
}

const (
	// Patience is how long a read waits for an upstream that gives no sign of life.
	Patience = time.Second
	// MostPatience is the same for an upstream that is slow for everybody, and while a feed brings
	// an earlier state to the present: in a quiet resource, a side watch may take two seconds to
	// show a sign.
	MostPatience = 4 * time.Second
	// patiently is the number of other answers for whose time a read waits.
	patiently = 10
)

// Ready waits until the cache is filled and may serve clients. It returns
// [watchcache.ErrNoProgress] once upstream has given no sign of life for Patience since the call.
// After any error, the request must go to upstream.
//
// Ready waits longer if upstream takes long for something else, too: there, the read would not be
// answered earlier either, and a watch would stay there. On a busy machine, a new proxy otherwise
// forwarded hundreds of the watches that came back to it (make restarts).
func (p *Progress) Ready(ctx context.Context) error {
	began := time.Now()
	quiet := func() time.Duration { return min(time.Since(began), p.signs.Quiet()) }
	for patience := Patience; ; {
		slice, cancel := context.WithTimeout(ctx, max(patience-quiet(), Patience/4))
		err := p.ready(slice)
		over := err == nil || ctx.Err() != nil || slice.Err() == nil
		cancel()
		switch behind := p.Started() && !p.Serves(); {
		case over:
			return err
		case p.queued.Load(), quiet() < patience, behind && quiet() < MostPatience:
			continue // the proxy itself lets a queued feed wait
		case !behind:
			const most = MostPatience - Patience
			others := p.Shared.answers.Measure(ctx, p.Shared.Client, most, Patience/4)
			patience = min(max(patience, patiently*others), MostPatience)
		}
		ended := closed(p.started) && p.err != nil // the next turn says why
		if quiet() >= patience && !ended && ctx.Err() == nil {
			return fmt.Errorf("%w: %s", watchcache.ErrNoProgress, p.Key)
		}
	}
}

// turn waits for the loop's turn to ask upstream for much. endTurn must be called once upstream has
// accepted a watch, or the state has been read.
func (p *Progress) turn(ctx context.Context) (endTurn func(), err error) {
	p.queued.Store(true)
	defer p.queued.Store(false)
	defer p.signs.Touch()
	return p.Shared.Health.Turn(ctx)
}
