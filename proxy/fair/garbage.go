package fair

import (
	"runtime"
	"runtime/metrics"
	"sync"
)

// garbage limits the garbage of bodies that are made for one request. A body in YAML leaves garbage
// of some 90 times its size. On a busy machine the collector cannot keep up with this rate, and the
// heap exceeds its limit: a hundred small lists in YAML exceeded it by 76 MiB. So if there is too
// much garbage, a collection runs before other claims get the memory.
type garbage struct {
	most int64 // maximum bytes; 0 means no limit
	mu   struct {
		sync.Mutex
		bytes int64
		since uint64 // the number of collections when the count began
	}
}

// CollectAfter sets the bytes of garbage after which a collection runs; 0 means never.
func (g *garbage) CollectAfter(bytes int64) { g.most = bytes }

// Discard counts bytes of the workspace that are now garbage. If there are too many, it runs a
// collection and waits for its end.
func (g *garbage) Discard(bytes int64) {
	if g.most == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// The first collection to complete after the count began may have started before it. The second
	// collection started after it.
	if now := collections(); g.mu.bytes == 0 || now >= g.mu.since+2 {
		g.mu.bytes, g.mu.since = 0, now
	}
	if g.mu.bytes += bytes; g.mu.bytes >= g.most {
		runtime.GC()
		g.mu.bytes = 0
	}
}

// collections returns the number of completed collections.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
