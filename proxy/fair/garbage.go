package fair

import (
	"runtime"
	"runtime/metrics"
	"sync"
)

// garbage bounds the garbage of one-off bodies. A body in YAML leaves garbage of some 90 times its
// size. On a busy machine the collector cannot keep up with this rate, and the heap exceeds its
// limit: a hundred small lists in YAML took 76 MiB too much. So if a body makes too much garbage,
// the garbage is collected before other claims get the memory.
type garbage struct {
	most int64 // bytes; 0 for no bound
	mu   struct {
		sync.Mutex
		bytes int64
		since uint64 // the number of collections when counting began
	}
}

// CollectAfter sets how many bytes of garbage start a collection; 0 is never.
func (g *garbage) CollectAfter(bytes int64) { g.most = bytes }

// Discard counts bytes that were taken from the workspace and are now garbage. It waits for a
// collection under way.
func (g *garbage) Discard(bytes int64) {
	if g.most == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// The second completed collection since then started after the garbage was made.
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
