package fair

import (
	"runtime"
	"runtime/metrics"
	"sync"
)

// garbage bounds what making one-off bodies leaves behind until the collector has been there. A body
// in YAML leaves some 90 times its size. On a busy machine the collector falls behind such a rate,
// and lets the heap pass its limit: a hundred small lists in YAML took 76 MiB more than they should.
// So whoever makes more garbage than there may be has it collected, before others get the memory.
type garbage struct {
	most int64 // bytes; 0 for any amount
	mu   struct {
		sync.Mutex
		bytes int64
		since uint64 // how many collections there were when it began
	}
}

// add counts garbage. Others who add some wait for a collection that is under way.
func (g *garbage) add(bytes int64) {
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

// collections is how many have ended.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
