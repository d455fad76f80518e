package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// NoteAnswer records the result of a request that was sent at began. If upstream did not respond, a
// task sends probes until any response comes. While upstream is down, the task takes turns with all
// feeds.
func (f *Feed) NoteAnswer(ctx context.Context, began time.Time, err error) {
	switch {
	case err == nil:
		f.Answered()
	case client.NoAnswer(err) && ctx.Err() == nil && f.Unanswered(began):
		f.Shared.Health.Doubt()
		f.Go(f.awaitAnswer)
	}
}

func (f *Feed) awaitAnswer(ctx context.Context) {
	for again := client.NewRetry(f.Shared.Health); ; {
		end, err := f.Shared.Health.Turn(ctx)
		if err != nil {
			return
		}
		if f.Waits() { // the stream may have shown a sign of life since
			probing, cancel := context.WithTimeout(ctx, AskTimeout)
			_, err = f.Probe(probing)
			cancel()
		}
		end()
		if !client.NoAnswer(err) {
			f.Answered()
			return
		}
		if !again.After(ctx, 0, err) {
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

// fillSilence is how long a stream may be silent before its state is complete. Aggregated API servers
// may ignore sendInitialEvents, or not mark the end of the state.
const fillSilence = 5 * time.Second

// guardFill cuts a stream that is silent before its state is complete. guardFill returns when ctx
// ends.
func (f *Feed) guardFill(ctx context.Context, cut context.CancelCauseFunc) {
	for client.Sleep(ctx, fillSilence-f.Quiet()) {
		if f.Quiet() >= fillSilence {
			cut(errNoState)
			return
		}
	}
}

// guard cuts an open stream if upstream moves on and the stream does not, even if its server sends
// old bookmarks. It passes the reason to cut. guard returns when ctx ends.
func (f *Feed) guard(ctx context.Context, cut context.CancelCauseFunc) {
	for client.Sleep(ctx, Silence-f.Quiet()) {
		if at, _ := f.Position(); f.Quiet() < Silence && at >= f.listed.Load() {
			continue
		}
		if err := f.check(ctx); err != nil {
			cut(err)
			return
		}
	}
}

func (f *Feed) check(ctx context.Context) error {
	listed := f.listed.Load()
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
	at, _ := f.Position()
	if rv == at {
		f.Touch()
		return nil
	}
	if f.cache.Resource().NoWatchCache {
		// Without a watch cache, upstream sends no bookmarks. A quiet stream then looks like a
		// broken one.
		if same, err := f.Confirm(probing, rv); err == nil && same {
			f.Touch()
			return f.Trim()
		}
	}
	waited := client.Sleep(ctx, grace)
	if now, _ := f.Position(); waited && (f.Quiet() > Silence || now < listed) {
		return fmt.Errorf("%w at %d while upstream is at %d", errSilent, at, rv)
	}
	return nil
}

// Trim drops log events that are older than the log's age limit. Bookmarks from upstream have the
// same effect.
func (f *Feed) Trim() error {
	_, epoch := f.Position()
	return f.Write(epoch, func() error {
		f.cache.Trim(time.Now())
		return nil
	})
}
