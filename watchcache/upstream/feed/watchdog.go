package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

type watchdog struct {
	client *client.Client
	writer *Writer
	signs  *Signs
}

const (
	// Silence is the time after which a silent stream is checked. Normally, upstream sends a
	// bookmark about once a minute.
	Silence = 90 * time.Second
	// grace is how long guard waits for a stream after a probe has found that upstream is ahead.
	grace = 5 * time.Second
)

// fillSilence is how long a stream may be silent before its state is complete. Aggregated API
// servers may ignore sendInitialEvents, or not mark the end of the state. A busy kube-apiserver may
// be silent as long before it sends 150,000 pods. Then the loop reads pages. If they take longer
// than upstream keeps history, the loop waits longer for the next stream (make scale).
const fillSilence = 5 * time.Second

// guardFill cuts a stream that is silent before its state is complete.
func (w *watchdog) guardFill(ctx context.Context, cut context.CancelCauseFunc) {
	for client.Sleep(ctx, fillSilence-w.signs.Quiet()) {
		if w.signs.Quiet() >= fillSilence {
			cut(errNoState)
			return
		}
	}
}

// guard cuts an open stream if upstream moves on and the stream does not, even if its server sends
// old bookmarks. It passes the reason to cut. guard returns when ctx ends.
func (w *watchdog) guard(ctx context.Context, cut context.CancelCauseFunc) {
	for client.Sleep(ctx, Silence-w.signs.Quiet()) {
		if at, _ := w.writer.Position(); w.signs.Quiet() < Silence && at >= w.writer.listed.Load() {
			continue
		}
		if err := w.check(ctx); err != nil {
			cut(err)
			return
		}
	}
}

func (w *watchdog) check(ctx context.Context) error {
	listed := w.writer.listed.Load()
	probing, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	rv, err := Probe(probing, w.client, w.writer.cache)
	switch {
	case errors.Is(err, ErrWentBack):
		return err
	case err != nil:
		return fmt.Errorf("%w and upstream does not answer: %w", errSilent, err)
	case !w.writer.cache.Stats().Ready:
		return fmt.Errorf("%w before the initial state was complete", errSilent)
	}
	at, epoch := w.writer.Position()
	if rv == at {
		w.signs.Touch()
		return nil
	}
	if w.writer.cache.Resource().NoWatchCache {
		// Without a watch cache, upstream sends no bookmarks. A quiet stream then looks like a
		// broken one.
		if same, err := w.confirm(probing, rv); err == nil && same {
			w.signs.Touch()
			return w.writer.Advance(epoch, 0)
		}
	}
	waited := client.Sleep(ctx, grace)
	if now, _ := w.writer.Position(); waited && (w.signs.Quiet() > Silence || now < listed) {
		return fmt.Errorf("%w at %d while upstream is at %d", errSilent, at, rv)
	}
	return nil
}

// confirm compares the log's newest state with upstream's at rv or later.
func (w *watchdog) confirm(ctx context.Context, rv uint64) (same bool, err error) {
	_, epoch := w.writer.Position()
	list, err := w.client.Metadata(ctx, w.writer.cache.Resource(), rv)
	if err != nil {
		return false, err
	}
	err = w.writer.Write(epoch, func() error {
		same = w.writer.cache.Writer().Confirm(list.States, list.RV)
		return nil
	})
	return same, err
}
