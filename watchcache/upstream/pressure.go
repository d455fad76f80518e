package upstream

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// ErrNoMemory means that a resource is not cached because memory is short.
var ErrNoMemory = errors.New("no memory is left for another cache")

// MemoryPressure contains the ways in which feeds save memory.
type MemoryPressure struct {
	// Logs is the factor for the limits of event logs: more than 0, at most 1.
	Logs float64
	// NoNewFeeds forwards requests for resources without a cache. It also ends feeds that are still
	// reading their first state.
	NoNewFeeds bool
}

// noMemoryPause is how long a resource stays uncached after its cache did not fit into memory. Each
// attempt costs upstream a full read.
const noMemoryPause = 10 * time.Minute

// SetMemoryPressure sets how feeds save memory from now on.
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
	fs.shedding.Lock() // otherwise an older value could be applied last
	defer fs.shedding.Unlock()
	fs.mu.Lock()
	shed := fs.mu.pressure
	fs.mu.Unlock()
	f.Cache().SetLimits(shed.limits(fs.Options.Load().Limits))
	_ = f.Trim() // if this fails, the feed has ended or begins a new epoch
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
