package upstream

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// ErrNoMemory means that a resource is not cached because memory is short.
var ErrNoMemory = errors.New("no memory is left for the cache")

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

// Memory estimates the memory of the caches, and makes them save it.
type Memory struct {
	feeds    *feedSet
	shedding sync.Mutex // held while shed runs
}

// SetMemoryPressure sets how feeds save memory from now on.
func (m *Memory) SetMemoryPressure(shed MemoryPressure) {
	m.feeds.saving.Store(&shed)
	for _, f := range m.feeds.Started() {
		m.shed(f)
	}
}

func (m *Memory) shed(f *fresh.Feed) {
	m.shedding.Lock() // otherwise an older value could be applied last
	defer m.shedding.Unlock()
	shed := m.feeds.saving.Load()
	f.Cache().SetLimits(shed.limits(m.feeds.shared.Options.Load().Limits))
	_, epoch := f.Feed.Writer.Position()
	_ = f.Feed.Writer.Advance(epoch, 0) // drops events, unless the feed has ended or begins anew
	if shed.NoNewFeeds && !f.Cache().Stats().Ready {
		f.Feed.Log.Warn("not cached; requests are forwarded",
			zap.Error(ErrNoMemory), zap.Duration("for", noMemoryPause))
		m.feeds.giveUp(f, ErrNoMemory, noMemoryPause)
	}
}

// objectCost is the memory of a cached object in addition to its bytes.
const objectCost = 256

func sizeOf(f *fresh.Feed) int64 {
	s := f.Cache().Stats()
	return s.Bytes + s.LogBytes + objectCost*int64(s.Objects)
}

// Bytes estimates the memory of all caches, in bytes.
func (m *Memory) Bytes() (sum int64) {
	for _, f := range m.feeds.Started() {
		sum += sizeOf(f)
	}
	return sum
}

// GiveUpLargest ends the largest cache, with all its watches. Its requests are forwarded for
// noMemoryPause. If caches that have begun in that time take more than a sixteenth of all, it ends
// the largest of them. Otherwise a user who makes the proxy fill more caches could end the old
// cache that all others use.
func (m *Memory) GiveUpLargest() {
	const part = 16
	var largest, young *fresh.Feed
	var most, mostYoung, sumYoung int64
	for _, f := range m.feeds.Started() {
		size := sizeOf(f)
		if size > most {
			largest, most = f, size
		}
		if f.Feed.Usage.Age() < noMemoryPause {
			if sumYoung += size; size > mostYoung {
				young, mostYoung = f, size
			}
		}
	}
	if sumYoung > m.Bytes()/part {
		largest, most = young, mostYoung
	}
	if largest == nil {
		return
	}
	largest.Feed.Log.Warn("the largest cache is given up, because memory is short; requests are "+
		"forwarded; raise memoryBudget, or exclude the resource (cache.exclude)",
		zap.Int64("bytes", most), zap.Duration("for", noMemoryPause))
	m.feeds.giveUp(largest, ErrNoMemory, noMemoryPause)
}

// ShortOfMemory reports whether requests for a resource are forwarded because memory was short.
func (m *Memory) ShortOfMemory() bool {
	m.feeds.mu.Lock()
	defer m.feeds.mu.Unlock()
	for key := range m.feeds.mu.refusals.byKey {
		if errors.Is(m.feeds.mu.refusals.of(key), ErrNoMemory) {
			return true
		}
	}
	return false
}

func (s MemoryPressure) limits(l watchcache.Limits) watchcache.Limits {
	if s.Logs >= 1 || s.Logs <= 0 {
		return l
	}
	const least = 1.0 / 16 // fewer events free little memory, unless they are large
	return watchcache.Limits{
		Age:    time.Duration(float64(l.Age) * max(s.Logs, least)),
		Events: max(1, int(float64(l.Events)*max(s.Logs, least))),
		Bytes:  max(1, int64(float64(l.Bytes)*s.Logs)),
	}
}
