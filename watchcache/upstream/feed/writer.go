package feed

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

var (
	// errOvertaken means that a side watch has brought newer events than a listed state.
	errOvertaken = errors.New("listed state was overtaken")
	// errOtherEpoch means that the epoch of a stream was abandoned after the stream opened.
	errOtherEpoch = errors.New("cache was started anew")
)

// Writer is the only way to write a feed's cache. The main stream, side watches, lists and proofs
// write at the same time. Each of them continues a state that was read from upstream, and the
// epoch counts these states. A write that continues another state than the cached one is refused.
type Writer struct {
	cache  *watchcache.Cache // nil until the feed has started
	log    *zap.Logger
	listed atomic.Uint64 // resourceVersion of the newest object in the last list; 0 in a new state

	mu struct {
		sync.Mutex // held during each write to the cache
		phase      phase
		epoch      uint64
		server     string // the version of the apiserver that wrote the state; "" if unknown
		answered   string // the version that the apiserver has reported last
	}
}

type phase int

const (
	syncing    phase = iota // read the state; the cached state, if any, stays in use
	correcting              // the same, and drop the log, because the cache has missed a change
	renewing                // read the state and begin a new epoch
	watching                // follow the changes
	stopped                 // nothing: the cache was abandoned
)

// Position returns the log's resourceVersion and epoch.
func (w *Writer) Position() (rv, epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cache.Stats().ResourceVersion, w.mu.epoch
}

// Write applies a change if the cache is still in the given epoch.
func (w *Writer) Write(epoch uint64, change func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.phase == stopped || w.mu.epoch != epoch {
		return errOtherEpoch
	}
	return change()
}

// Advance records that upstream has reached rv (see [watchcache.Writer.Advance]).
func (w *Writer) Advance(epoch, rv uint64) error {
	return w.Write(epoch, func() error {
		w.cache.Writer().Advance(rv, time.Now())
		return nil
	})
}

// adopt writes a newly read state: as events for the differences or, if that is impossible, as a
// new epoch of the cache. It returns the feed's epoch for the following changes.
func (w *Writer) adopt(changes []watchcache.Change, rv uint64) (epoch uint64, err error) {
	objects := compact(changes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.phase == stopped {
		return 0, errOtherEpoch
	}
	stats := w.cache.Stats()
	continues := stats.Ready && w.mu.phase != renewing
	if continues {
		if rv < stats.ResourceVersion {
			return 0, fmt.Errorf("%w: %d, cached at %d", errOvertaken, rv, stats.ResourceVersion)
		}
		if w.mu.phase == correcting {
			w.cache.Writer().Distrust()
		}
		if err := w.cache.Writer().Replace(objects, rv, time.Now()); err != nil {
			const broken = "relist does not continue the cached state; ending its watches"
			w.log.Warn(broken, zap.Error(err))
			continues = false
		}
	}
	if !continues {
		w.cache.Writer().Reset(objects, rv)
		w.log.Info("synced", zap.Int("objects", len(objects)), zap.Uint64("resourceVersion", rv))
	}
	w.mu.phase, w.mu.server = watching, w.mu.answered
	w.listed.Store(0)
	w.mu.epoch++
	return w.mu.epoch, nil
}

// bookmark returns a bookmark's resourceVersion. The cache keeps the bookmark as the template for
// its own, because another version of the apiserver may write it in another way.
func (w *Writer) bookmark(e client.Event) (uint64, error) {
	b, rv, err := w.cache.Resource().ParseBookmark(e.Object)
	if err == nil {
		w.cache.Writer().SetBookmark(b)
	}
	return rv, err
}

// enter begins a phase. A stopped feed stays stopped. Until a feed has read a state, it does not
// fall back to an earlier phase.
func (w *Writer) enter(p phase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was := w.mu.phase; was == watching || was < p {
		w.mu.phase = p
	}
}

func (w *Writer) phase() phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.phase
}

func (w *Writer) noteVersion(version string) (other bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.answered = version
	return w.mu.server != version
}

// sameState records that the present version writes the state of an epoch as the cache has it.
func (w *Writer) sameState(epoch uint64) {
	_ = w.Write(epoch, func() error { // the epoch may be over
		w.mu.server = w.mu.answered
		return nil
	})
}

func (w *Writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.phase = stopped
	w.mu.epoch++
	w.cache.Writer().End()
}
