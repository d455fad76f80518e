package upstream

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// ErrNoMemory says that a resource is not cached for lack of memory.
var ErrNoMemory = errors.New("no memory is left for another cache")

// MemoryPressure says what feeds give up to save memory.
type MemoryPressure struct {
	// Logs scales the bounds of event logs: more than 0, at most 1.
	Logs float64
	// NoNewFeeds leaves resources without a cache to upstream. Feeds that are still reading their
	// first state are given up.
	NoNewFeeds bool
}

// noMemoryPause is how long a resource with too large a cache stays uncached: each attempt costs
// upstream a full read.
const noMemoryPause = 10 * time.Minute

// SetMemoryPressure changes what feeds give up, from now on.
func (fs *Feeds) SetMemoryPressure(shed MemoryPressure) {
	fs.mu.Lock()
	fs.mu.pressure = shed
	fs.mu.Unlock()
	for _, f := range fs.list() {
		fs.shed(f)
	}
}

// shed applies the present memory pressure to a started feed.
func (fs *Feeds) shed(f *fresh.Feed) {
	fs.shedding.Lock() // otherwise an older decision could be applied last
	defer fs.shedding.Unlock()
	fs.mu.Lock()
	shed := fs.mu.pressure
	fs.mu.Unlock()
	f.Cache().SetLimits(shed.limits(fs.Options.Load().Limits))
	_ = f.Trim() // the feed has ended, or begins anew
	if shed.NoNewFeeds && !f.Cache().Stats().Ready {
		f.Log.Warn("not cached; requests are forwarded", zap.Error(ErrNoMemory), zap.Duration("for", noMemoryPause))
		fs.giveUp(f, ErrNoMemory, noMemoryPause)
	}
}

func (s MemoryPressure) limits(l watchcache.Limits) watchcache.Limits {
	if s.Logs >= 1 || s.Logs <= 0 {
		return l
	}
	return watchcache.Limits{
		Age:    time.Duration(float64(l.Age) * s.Logs),
		Events: max(1, int(float64(l.Events)*s.Logs)),
		Bytes:  max(1, int64(float64(l.Bytes)*s.Logs)),
	}
}
