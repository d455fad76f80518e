package fair

import (
	"runtime"
	"runtime/metrics"
	"sync"
)

// garbage bounds the garbage of one-off bodies. A body in YAML leaves some 90 times its size. On a
// busy machine the collector falls behind such a rate and lets the heap pass its limit: a hundred
// small lists in YAML took 76 MiB too much. So a body that makes too much garbage has it collected
// before others get the memory.
type garbage struct {
	most int64 // bytes; 0 for no bound
	mu   struct {
		sync.Mutex
		bytes int64
		since uint64 // the number of collections when counting began
	}
}

// CollectAfter has garbage collected when there is more than this of it, in bytes; 0 is never.
func (g *garbage) CollectAfter(bytes int64) { g.most = bytes }

// Discard counts bytes that were taken and are garbage. It waits for a collection under way.
func (g *garbage) Discard(bytes int64) {
	if g.most == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// The second collection since then began after the garbage was there.
	if now := collections(); g.mu.bytes == 0 || now >= g.mu.since+2 {
		g.mu.bytes, g.mu.since = 0, now
	}
	if g.mu.bytes += bytes; g.mu.bytes >= g.most {
		runtime.GC()
		g.mu.bytes = 0
	}
}

// collections is the number of completed collections.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
