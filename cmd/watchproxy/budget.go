package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// These are shares of the budget that may be in use. The rest of the budget is for garbage, which
// may be a quarter of the bytes in use (gcPercent). Between derivedFrom and derivedTo, the limit of
// derived bytes falls to zero. Derived bytes can be derived again. Between logsFrom and logsTo, the
// event logs shrink to a sixteenth, so late watches have to list again. From feedsShut on, no new
// cache starts, until use falls below feedsOpen. Up to feedsEnd, the logs shrink on: a sixteenth of
// their usual limit is much for a small budget. From feedsEnd on, caches end, the largest first.
const (
	derivedFrom, derivedTo = 0.60, 0.70
	logsFrom, logsTo       = 0.65, 0.78
	feedsShut, feedsOpen   = 0.78, 0.70
	feedsEnd               = 0.90
	fewLogs, leastLogs     = 1.0 / 16, 1.0 / 128
)

// derivedMax is the limit of derived bytes while there is enough memory.
const derivedMax = 64 << 20

// budget drops cached data that the proxy can do without when memory is short.
type budget struct {
	Limit   int64 // of the garbage collector, in bytes; 0 means no limit
	derived *derived.Store
	feeds   feeds
	log     *zap.Logger
	collect func() int64 // runs the garbage collector and returns the bytes in use after it

	shut    atomic.Bool // no new feeds
	ended   bool        // the last look ended a cache
	logs    float64
	percent int  // last value given to the garbage collector
	fixedGC bool // GOGC is set
}

type feeds interface {
	SetMemoryPressure(upstream.MemoryPressure)
	Bytes() int64
	GiveUpLargest()
	ShortOfMemory() bool
}

// newBudget sets the garbage collector's limit. Without a size, the container's limit counts.
func newBudget(size *resource.Quantity, log *zap.Logger) *budget {
	limit := tune(size, memlimit.FromCgroup, log)
	fixed := os.Getenv("GOGC") != ""
	return &budget{Limit: limit, fixedGC: fixed, log: log, collect: collect, logs: 1}
}

func (b *budget) Of(feeds *upstream.Feeds, derived *derived.Store) {
	b.feeds, b.derived = feeds.Memory, derived
}

func (b *budget) Users() int64 { return b.Limit / 4 }

func (b *budget) Strangers() int64 { return min(b.Limit/8, 128<<20) }

// Connections returns the number of connections that fit in half of the budget; 0 means no limit.
func (b *budget) Connections() int {
	const share, each = 2, 28 << 10 // a new connection with TLS
	if b.Limit == 0 {
		return 0
	}
	return int(max(share, b.Limit/share/each))
}

// Run checks memory every lookEvery until ctx ends.
func (b *budget) Run(ctx context.Context) {
	for running := true; running; running = client.Sleep(ctx, lookEvery) {
		inUse, collected := memoryInUse()
		b.setPercent(inUse)
		if b.Limit > 0 {
			b.look(inUse, collected)
		}
	}
}

func (b *budget) setPercent(inUse int64) {
	const change = 1.0 / 8 // each change stops the world for a moment
	percent := percentFor(inUse)
	changed := max(percent-b.percent, b.percent-percent)
	if b.fixedGC || part(int64(changed), int64(percent)) < change {
		return
	}
	debug.SetGCPercent(percent)
	b.percent = percent
}

// look adjusts the limits of derived bytes, logs and feeds to the bytes in use. Until the next
// collection, bytes in use include released memory, so look collects before and after a cache ends.
func (b *budget) look(inUse int64, collected time.Time) {
	used := part(inUse, b.Limit)
	if used >= derivedFrom && time.Since(collected) > collectEvery || b.ended || b.over(inUse) {
		inUse = b.collect()
		used = part(inUse, b.Limit)
	}
	b.derived.SetLimit(int64(derivedMax * (1 - between(used, derivedFrom, derivedTo))))
	shut := used >= feedsShut || b.shut.Load() && used >= feedsOpen
	if shut != b.shut.Load() {
		b.log.Warn("memory budget", zap.Bool("newCaches", !shut), zap.Int64("bytesInUse", inUse),
			zap.Int64("bytes", b.Limit))
	}
	logs := min(logsAt(used), b.logs+logsRecovery)
	if shut != b.shut.Load() || logs != b.logs {
		b.feeds.SetMemoryPressure(upstream.MemoryPressure{Logs: logs, NoNewFeeds: shut})
	}
	if logs < b.logs && b.over(inUse) {
		inUse = b.collect()
	}
	b.shut.Store(shut)
	b.logs = logs
	if b.ended = b.over(inUse); b.ended {
		b.feeds.GiveUpLargest()
	}
}

// logsAt returns the factor for the limits of event logs if this part of the budget is in use.
func logsAt(used float64) float64 {
	if used > logsTo {
		return fewLogs - (fewLogs-leastLogs)*between(used, logsTo, feedsEnd)
	}
	return max(fewLogs, 1-between(used, logsFrom, logsTo))
}

// over reports whether the caches are too large. If they are the smaller part of the bytes in use,
// they stay: the other memory has bounds of its own, and most of it is released soon.
func (b *budget) over(inUse int64) bool {
	return part(inUse, b.Limit) >= feedsEnd && b.feeds.Bytes() >= inUse/2
}

const (
	lookEvery = 250 * time.Millisecond
	// logsRecovery is the maximum growth of the logs' share of their limits between two looks.
	logsRecovery = 0.0025
	// collectEvery is the longest time between two collections while memory is short.
	collectEvery = 5 * time.Second
)

func part(of, all int64) float64 { return float64(of) / float64(all) }

// between returns the position of v between from and to, as a number from 0 to 1.
func between(v, from, to float64) float64 { return min(1, max(0, (v-from)/(to-from))) }

func collect() int64 {
	runtime.GC()
	inUse, _ := memoryInUse()
	return inUse
}

// memoryInUse returns the bytes in use at the last garbage collection, and the time of that
// collection. The bytes are those of live objects and of the Go runtime outside the heap.
func memoryInUse() (bytes int64, collected time.Time) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/memory/classes/metadata/mcache/inuse:bytes"},
		{Name: "/memory/classes/metadata/mspan/inuse:bytes"},
		{Name: "/memory/classes/metadata/other:bytes"},
		{Name: "/memory/classes/os-stacks:bytes"},
		{Name: "/memory/classes/other:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		bytes += int64(s.Value.Uint64())
	}
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	return bytes, stats.LastGC
}

func (b *budget) Register(r prometheus.Registerer) {
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("watchproxy_memory_in_use_bytes", "Memory in use as of the last garbage collection. "+
		"From 60 % of the budget on there is less that is derived, "+
		"from 65 % less log, from 78 % no new cache, and from 90 % on caches end.", func() float64 {
		inUse, _ := memoryInUse()
		return float64(inUse)
	})
	gauge("watchproxy_caching_paused", "1 if there is no memory for some caches, "+
		"whose requests are forwarded, else 0.", func() float64 {
		if b.shut.Load() || b.feeds.ShortOfMemory() {
			return 1
		}
		return 0
	})
}
