package fair

import (
	"runtime"
	"runtime/metrics"
	"sync"
)

// garbage bounds the garbage of one-off bodies, which are made for one request. A body in YAML
// leaves garbage of some 90 times its size. On a busy machine the collector cannot keep up with
// this rate, and the heap exceeds its limit: a hundred small lists in YAML took 76 MiB too much. So
// when there is too much garbage, it is collected before other claims get the memory.
type garbage struct {
	most int64 // maximum bytes; 0 means no bound
	mu   struct {
		sync.Mutex
		bytes int64
		since uint64 // the number of collections when counting began
	}
}

// CollectAfter sets the number of bytes of garbage that start a collection; 0 means never.
func (g *garbage) CollectAfter(bytes int64) { g.most = bytes }

// Discard counts bytes that were taken from the workspace and are now garbage. It runs a collection
// if there are too many, and waits for its end.
func (g *garbage) Discard(bytes int64) {
	if g.most == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// The second collection that completes after counting began also started after it.
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
