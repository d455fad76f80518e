package feed

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// signs records signs of life from upstream: events, bookmarks and responses. All times are
// moments.
type signs struct {
	lost       atomic.Int64 // when the stream was lost; 0 while it works
	refused    atomic.Bool  // upstream responded, but refused the stream
	unanswered atomic.Int64 // when the first of the unanswered probes was sent; 0 if the last probe was answered
	last       atomic.Int64 // when the last sign of life came
}

// alive records a sign of life. It clears the loss of upstream.
func (s *signs) alive() {
	s.touch()
	s.lost.Store(0)
	s.unanswered.Store(0)
}

func (s *signs) touch() { s.last.Store(watchcache.Moment(time.Now())) }

// Quiet is the time since upstream's last sign of life.
func (s *signs) Quiet() time.Duration { return watchcache.SinceMoment(s.last.Load()) }

// failed records that the stream was lost. A silent stream counts as lost since upstream's last
// sign of life.
func (s *signs) failed(err error) {
	since := watchcache.Moment(time.Now())
	if errors.Is(err, errSilent) {
		since = s.last.Load()
	}
	s.refused.Store(client.Answered(err))
	s.lost.CompareAndSwap(0, since)
}

// Unreachable returns for how long upstream has not responded, as far as the feed knows. The
// refusal of a stream is a response, too.
func (s *signs) Unreachable() (age time.Duration) {
	if s.refused.Load() && s.unanswered.Load() == 0 {
		return 0
	}
	age, _ = s.Lost()
	return age
}

// Lost reports whether the feed has lost upstream: the stream broke, or a probe was not answered.
// age is the time since then. The cache may be out of date by that much.
func (s *signs) Lost() (age time.Duration, lost bool) {
	for _, since := range []int64{s.lost.Load(), s.unanswered.Load()} {
		if since != 0 {
			age, lost = max(age, watchcache.SinceMoment(since)), true
		}
	}
	return age, lost
}

// NoteAnswer records the result of a request that was sent at began. If upstream did not respond, a
// task sends probes until any response comes. While upstream is down, the task takes turns with all
// feeds.
func (f *Feed) NoteAnswer(ctx context.Context, began time.Time, err error) {
	switch {
	case err == nil:
		f.unanswered.Store(0)
	case client.NoAnswer(err) && ctx.Err() == nil && f.unanswered.CompareAndSwap(0, watchcache.Moment(began)):
		f.Health.Doubt()
		f.Go(f.awaitAnswer)
	}
}

func (f *Feed) awaitAnswer(ctx context.Context) {
	for again := servers.NewRetry(f.Health); ; {
		end, err := f.Health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return
		}
		if f.unanswered.Load() != 0 { // the stream may have shown a sign of life since
			probing, cancel := context.WithTimeout(ctx, AskTimeout)
			_, err = f.Probe(probing)
			cancel()
		}
		end()
		if !client.NoAnswer(err) {
			f.unanswered.Store(0)
			return
		}
		if !again.After(ctx, 0, err, false) {
			return
		}
	}
}

const (
	// Silence is the time after which a silent stream is checked. Normally, upstream sends a
	// bookmark about once a minute.
	Silence = 90 * time.Second
	// grace is how long guard waits for a stream after a probe has shown that upstream is ahead.
	grace = 5 * time.Second
)

// guard cuts an open stream if upstream moves on and the stream does not. It passes the reason to
// cut. guard returns when ctx ends.
func (f *Feed) guard(ctx context.Context, cut context.CancelCauseFunc) {
	for client.Sleep(ctx, Silence-f.Quiet()) {
		if f.Quiet() < Silence {
			continue
		}
		if err := f.check(ctx); err != nil {
			cut(err)
			return
		}
	}
}

func (f *Feed) check(ctx context.Context) error {
	probing, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	rv, err := f.Probe(probing)
	switch {
	case errors.Is(err, ErrWentBack):
		return err
	case err != nil:
		return fmt.Errorf("%w and upstream does not answer: %w", errSilent, err)
	case !f.cache.Stats().Ready:
		return fmt.Errorf("%w before the initial state was complete", errSilent)
	}
	at, _ := f.Standing()
	if rv == at {
		f.touch()
		return nil
	}
	if f.cache.Resource().NoWatchCache {
		// Without a watch cache, upstream sends no bookmarks. A quiet stream then looks like a
		// broken one.
		if same, err := f.Confirm(probing, rv); err == nil && same {
			f.touch()
			return f.Trim()
		}
	}
	if client.Sleep(ctx, grace) && f.Quiet() > Silence {
		return fmt.Errorf("%w at %d while upstream is at %d", errSilent, at, rv)
	}
	return nil
}

// Trim drops log events that are older than the log's age limit. Bookmarks from upstream have the
// same effect.
func (f *Feed) Trim() error {
	_, epoch := f.Standing()
	return f.Write(epoch, func() error {
		f.cache.Trim(time.Now())
		return nil
	})
}
