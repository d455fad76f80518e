package main

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// caches have sizes in percent of the budget. Ended caches, and dropped parts of logs, are garbage
// until the next collection.
type caches struct {
	used, garbage int64
	sizes         []int64
	logs, logMost int64 // the logs' size and usual limit
	pressure      upstream.MemoryPressure
	collections   int
}

func (c *caches) SetMemoryPressure(p upstream.MemoryPressure) {
	c.pressure = p
	if most := int64(float64(c.logMost) * p.Logs); c.logs > most {
		c.garbage += c.logs - most
		c.logs = most
	}
}

// write makes the logs grow up to their limit.
func (c *caches) write(size int64) {
	if most := int64(float64(c.logMost) * c.pressure.Logs); c.logs+size > most {
		size = max(0, most-c.logs)
	}
	c.logs += size
	c.used += size
}

func (c *caches) ShortOfMemory() bool { return false }

func (c *caches) Bytes() (sum int64) {
	for _, size := range c.sizes {
		sum += size
	}
	return sum
}

func (c *caches) GiveUpLargest() {
	c.garbage += c.sizes[0]
	c.sizes = c.sizes[1:]
}

func (c *caches) collect() int64 {
	c.collections++
	c.used, c.garbage = c.used-c.garbage, 0
	return c.used
}

// From 78 % of the budget on, no cache starts. From 90 % on, caches end one by one until less is in use
// after a collection, or until the caches are the smaller part of it.
func TestThresholds(t *testing.T) {
	for name, test := range map[string]struct {
		used, garbage int64
		sizes, left   []int64
		shut          bool
		collections   int // in ten looks
	}{
		"enough":          {used: 77, sizes: []int64{50, 20}, left: []int64{50, 20}},
		"no new caches":   {used: 89, sizes: []int64{50, 20}, left: []int64{50, 20}, shut: true},
		"only garbage":    {used: 95, garbage: 30, sizes: []int64{50}, left: []int64{50}, collections: 1},
		"the largest":     {used: 90, sizes: []int64{50, 20}, left: []int64{20}, collections: 3},
		"as many as need": {used: 119, sizes: []int64{40, 15, 15}, left: []int64{15, 15}, shut: true, collections: 3},
		"one by one":      {used: 104, sizes: []int64{12, 11, 40}, left: []int64{40}, shut: true, collections: 4},
		"other memory":    {used: 95, sizes: []int64{46}, left: []int64{46}, shut: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caches{used: test.used, garbage: test.garbage, sizes: test.sizes}
			kept := derived.New(1<<20, prometheus.NewRegistry())
			defer kept.Close()
			b := &budget{Limit: 100, derived: kept, feeds: c, log: zaptest.NewLogger(t), collect: c.collect, logs: 1}
			for range 10 {
				b.look(c.used, time.Now())
			}
			if !slices.Equal(c.sizes, test.left) || c.pressure.NoNewFeeds != test.shut || c.collections != test.collections {
				t.Errorf("caches of %v are left, no new ones: %t, after %d collections", c.sizes, c.pressure.NoNewFeeds, c.collections)
			}
		})
	}
}

// Caches end only after the logs have given way, however large the logs' limit is for the budget.
func TestLogsGiveWayToCaches(t *testing.T) {
	for _, test := range []struct{ caches, logs, logMost int64 }{
		{50, 48, 50}, {84, 0, 160}, {84, 5, 500}, {60, 300, 300},
	} {
		c := &caches{used: test.caches + test.logs, sizes: []int64{test.caches}, logs: test.logs, logMost: test.logMost}
		c.pressure.Logs = 1
		kept := derived.New(1<<20, prometheus.NewRegistry())
		b := &budget{Limit: 100, derived: kept, feeds: c, log: zaptest.NewLogger(t), collect: c.collect, logs: 1}
		for range 2000 {
			b.look(c.used, time.Now())
			c.write(1)
		}
		kept.Close()
		if len(c.sizes) != 1 || c.used-c.garbage >= 90 {
			t.Errorf("%+v: %d caches are left, %d %% in use", test, len(c.sizes), c.used-c.garbage)
		}
	}
}

// Half of the budget has room for the connections, and there is at least one for each of two users.
func TestConnectionsKeepToTheBudget(t *testing.T) {
	for limit, want := range map[int64]int{0: 0, 1: 2, 1 << 30: 18724} {
		if got := (&budget{Limit: limit}).Connections(); got != want {
			t.Errorf("%d bytes: %d connections, want %d", limit, got, want)
		}
	}
}

// All that users and strangers may hold at a time leaves room in the budget for the caches.
func TestHoldersLeaveRoom(t *testing.T) {
	for _, limit := range []int64{64 << 20, 512 << 20, 16 << 30} {
		b := budget{Limit: limit}
		users, strangers := b.Users(), b.Strangers()
		if users == 0 || strangers == 0 || users+users+users/2+strangers+strangers/2 > limit*7/8 {
			t.Errorf("of %d, users may hold %d of each kind, and strangers %d", limit, users, strangers)
		}
	}
}
