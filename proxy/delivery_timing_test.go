package proxy

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// BenchmarkDelivery is events on their way to a hundred watches: by a pump, which has scratch
// space, and by goroutines of their own.
func BenchmarkDelivery(b *testing.B) {
	for _, c := range []struct {
		name         string
		events, size int
		pumped       bool
	}{
		{"one, pumped", 1, 1000, true},
		{"one", 1, 1000, false},
		{"burst of 100, pumped", 100, 300, true},
		{"burst of 100", 100, 300, false},
		{"one of 200 KiB", 1, 200 << 10, false},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkDelivery(b, c.events, c.size, c.pumped) })
	}
}

func benchmarkDelivery(b *testing.B, events, size int, pumped bool) {
	r, _ := pageOf(b, 1, 0)
	r.watchSeconds = 36000
	r.cache = watchcache.New(*r.resource, watchcache.Limits{Age: time.Hour, Events: 1000, Bytes: 1 << 26})
	r.cache.Reset(nil, 1)
	initial, err := r.cache.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	var s *scratch
	if pumped {
		s = new(scratch)
	}
	all := make([]*watching, 100)
	outs := make([]*exchange.ChunkWriter, len(all))
	for i := range all {
		cursor, err := r.cache.WatchAfter(r.filter, initial)
		if err != nil {
			b.Fatal(err)
		}
		mine := *r
		all[i] = &watching{read: &mine, cursor: cursor, draining: context.Background(), done: func() {}}
		outs[i] = &exchange.ChunkWriter{To: io.Discard}
		if !all[i].open(b.Context(), outs[i]) {
			b.Fatal("it does not begin")
		}
		b.Cleanup(all[i].close)
	}
	padding := strings.Repeat("x", size)
	changes := make([]watchcache.Change, events)
	rv := 10
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		for i := range changes {
			rv++
			changes[i].Object, err = r.resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"c","namespace":"a","uid":"u","resourceVersion":"%d"},"data":{"p":%q}}`, rv, padding))
			if err != nil {
				b.Fatal(err)
			}
		}
		if err := r.cache.Apply(changes, time.Now()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		for i, w := range all {
			for behind := true; behind; {
				var on bool
				if on, behind = w.turn(b.Context(), outs[i], s); !on {
					b.Fatal("it ends")
				}
			}
		}
	}
}
