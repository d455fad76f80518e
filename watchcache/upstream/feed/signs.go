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

// signs are upstream's signs of life, as far as a feed sees them. All times are moments.
type signs struct {
	lost       atomic.Int64 // the stream was lost; 0 while it is there
	refused    atomic.Bool  // the stream was lost because upstream refused it
	unanswered atomic.Int64 // the first unanswered probe, 0 if the last was answered
	last       atomic.Int64 // the last sign
}

// alive notes a sign of life from upstream.
func (s *signs) alive() {
	s.touch()
	s.lost.Store(0)
	s.unanswered.Store(0)
}

func (s *signs) touch() { s.last.Store(watchcache.Moment(time.Now())) }

// Quiet is the time since upstream's last sign of life.
func (s *signs) Quiet() time.Duration { return watchcache.SinceMoment(s.last.Load()) }

// failed notes that the stream was lost. A silent stream counts as lost since its last sign of
// life.
func (s *signs) failed(err error) {
	since := watchcache.Moment(time.Now())
	if errors.Is(err, errSilent) {
		since = s.last.Load()
	}
	s.refused.Store(client.Answered(err))
	s.lost.CompareAndSwap(0, since)
}

// Unreachable tells for how long upstream has not answered, as far as the feed knows. An upstream
// that refuses a stream answers.
func (s *signs) Unreachable() (age time.Duration) {
	if s.refused.Load() && s.unanswered.Load() == 0 {
		return 0
	}
	age, _ = s.Lost()
	return age
}

// Lost tells whether upstream cannot be reached, and for how long: the cache may be that far out of
// date. Either the stream broke, or a probe got no answer.
func (s *signs) Lost() (age time.Duration, lost bool) {
	for _, since := range []int64{s.lost.Load(), s.unanswered.Load()} {
		if since != 0 {
			age, lost = max(age, watchcache.SinceMoment(since)), true
		}
	}
	return age, lost
}

// NoteAnswer notes whether upstream answered a request that began at that time. If upstream did not
// answer, a task probes until upstream answers anything. While upstream is away, the task waits for
// its turn, as all feeds do.
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
		if f.unanswered.Load() != 0 { // the stream may have answered meanwhile
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
	// Silence is how long a stream may say nothing: upstream sends a bookmark about once a minute.
	Silence = 90 * time.Second
	// grace is how long a stream may take to follow once upstream was seen to be ahead.
	grace = 5 * time.Second
)

// guard cuts an open stream if upstream moves on and the stream does not; the reason is the
// cause. It returns when ctx ends.
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
		// Upstream has no watch cache for events, so no bookmark comes: a quiet stream
		// looks like a broken one.
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

// Trim drops what has exceeded the log's age limit. Where upstream sends bookmarks, these do that
// as well.
func (f *Feed) Trim() error {
	_, epoch := f.Standing()
	return f.Write(epoch, func() error {
		f.cache.Trim(time.Now())
		return nil
	})
}
