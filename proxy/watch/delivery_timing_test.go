package watch

import (
	"io"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// BenchmarkDelivery delivers events to a hundred watches: by a pump, which has Scratch space, and
// by a goroutine for each watch.
func BenchmarkDelivery(b *testing.B) {
	for _, c := range []struct {
		name         string
		events, size int
		pumped, gzip bool
	}{
		{"one, pumped", 1, 1000, true, false},
		{"one, pumped, compressed", 1, 1000, true, true},
		{"one", 1, 1000, false, false},
		{"burst of 100, pumped", 100, 300, true, false},
		{"burst of 100", 100, 300, false, false},
		{"burst of 100, compressed", 100, 300, false, true},
		{"one of 200 KiB", 1, 200 << 10, false, false},
		{"one of 200 KiB, compressed", 1, 200 << 10, false, true},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkDelivery(b, c.events, c.size, c.pumped, c.gzip) })
	}
}

func benchmarkDelivery(b *testing.B, events, size int, pumped, gzip bool) {
	c, initial := cachetest.Roomy(b)
	var s *Scratch
	if pumped {
		s = new(Scratch)
	}
	var lag Lag
	var compressed *Events
	if gzip {
		compressed = new(Events)
	}
	all := make([]*Watch, 100)
	outs := make([]*exchange.ChunkWriter, len(all))
	for i := range all {
		p := paramsOf(b, c, initial)
		p.Lifetime, p.Lag, p.Events, p.Compressed = 10*time.Hour, &lag, compressed, compressed != nil
		outs[i] = &exchange.ChunkWriter{To: io.Discard}
		all[i] = opened(b, p, outs[i])
	}
	objects := make([]*object.Object, events)
	rv := uint64(10)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		for i := range objects {
			rv++
			objects[i] = cachetest.Sized(b, rv, size)
		}
		cachetest.Apply(b, c, objects...)
		b.StartTimer()
		for i, w := range all {
			for behind := true; behind; {
				var on bool
				if on, behind = w.Turn(b.Context(), outs[i], s); !on {
					b.Fatal("it ends")
				}
			}
			if pumped && i%16 == 0 { // as a pump does
				s.Written()
			}
		}
	}
	b.StopTimer()
	if n, _, _ := lag.Prompt.Totals(); n == 0 {
		b.Error("no lag was counted")
	}
}
