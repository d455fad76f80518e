package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// silence is how long a stream may say nothing: upstream sends a bookmark
	// about once a minute.
	silence = 90 * time.Second
	// grace is how long a stream may take to follow once upstream was seen ahead.
	grace = 5 * time.Second
)

// guard cuts an open stream if upstream moves on and the stream does not; the reason is the
// cause. It returns when ctx ends.
func (f *Feed) guard(ctx context.Context, cut context.CancelCauseFunc) {
	for client.Sleep(ctx, silence-f.quiet()) {
		if f.quiet() < silence {
			continue
		}
		if err := f.check(ctx); err != nil {
			cut(err)
			return
		}
	}
}

// quiet is the time since upstream's last sign of life.
func (f *Feed) quiet() time.Duration { return watchcache.SinceMoment(f.lastSign.Load()) }

func (f *Feed) check(ctx context.Context) error {
	probing, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	p, err := f.client.Probe(probing, f.cache.Resource())
	if err != nil {
		return fmt.Errorf("%w and upstream does not answer: %w", errSilent, err)
	}
	s, err := f.cache.Snapshot()
	switch {
	case err != nil: // the initial state is still being read
		return fmt.Errorf("%w before the initial state was complete", errSilent)
	case p.RV < s.ResourceVersion():
		return fmt.Errorf("%w: from %d to %d", errWentBack, s.ResourceVersion(), p.RV)
	}
	at, _ := f.standing()
	if p.RV == at {
		f.touch()
		return nil
	}
	if f.cache.Resource().NoWatchCache {
		// Upstream has no watch cache for events, so no bookmark comes: a quiet stream
		// looks like a broken one.
		if same, err := f.confirm(probing, p.RV); err == nil && same {
			f.touch()
			return f.forget()
		}
	}
	if client.Sleep(ctx, grace) && f.quiet() > silence {
		return fmt.Errorf("%w at %d while upstream is at %d", errSilent, at, p.RV)
	}
	return nil
}

// forget drops what has exceeded the log's age limit. Bookmarks do that as well, where they come.
func (f *Feed) forget() error {
	_, epoch := f.standing()
	return f.write(epoch, func() error {
		f.cache.Trim(time.Now())
		return nil
	})
}
