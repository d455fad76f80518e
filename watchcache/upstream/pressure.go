package upstream

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
)

// ErrNoMemory says that a resource is not cached as there is no memory for it.
var ErrNoMemory = errors.New("no memory is left for another cache")

// MemoryPressure says what feeds do without, to save memory.
type MemoryPressure struct {
	// Logs is the share of their bounds that event logs keep to, more than 0, at most 1.
	Logs float64
	// NoNewFeeds leaves to upstream what is not cached yet. Feeds that are still reading their first
	// state are given up.
	NoNewFeeds bool
}

// noMemoryPause is how long a resource stays uncached whose cache turned out too large: to read it costs upstream
// as much each time.
const noMemoryPause = 10 * time.Minute

// SetMemoryPressure changes what feeds do without, from now on.
func (fs *Feeds) SetMemoryPressure(shed MemoryPressure) {
	fs.mu.Lock()
	fs.mu.pressure = shed
	fs.mu.Unlock()
	for _, f := range fs.list() {
		fs.shed(f)
	}
}

// shed has a started feed do without what has to be done without now.
func (fs *Feeds) shed(f *Feed) {
	fs.shedding.Lock() // or what was decided first could be done last
	defer fs.shedding.Unlock()
	fs.mu.Lock()
	shed := fs.mu.pressure
	fs.mu.Unlock()
	f.cache.SetLimits(shed.limits(fs.options.Load().Limits))
	_ = f.forget() // the feed has ended, or begins anew
	if shed.NoNewFeeds && !f.cache.Stats().Ready {
		f.log.Warn("not cached; requests are forwarded", zap.Error(ErrNoMemory), zap.Duration("for", noMemoryPause))
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
