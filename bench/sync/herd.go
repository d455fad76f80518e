package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	// herdTime is the time over which the members of a herd start.
	herdTime = time.Second
	// herdLimit limits the time until all have synced.
	herdLimit = 3 * time.Minute
	// informersMax is the largest size of a herd of client-go's informers. Decoding takes most of
	// their time, so members of larger herds do not decode.
	informersMax = 10
)

// herd is a row of the table: informers of one collection that start within a second, through a
// proxy that has just started.
type herd struct {
	Collection string   `json:"collection"`
	Resource   string   `json:"resource"`
	Objects    int      `json:"objects"`
	Members    int      `json:"informers"`
	Synced     int      `json:"synced"`
	Decoding   bool     `json:"decoding"` // client-go's informers, not followers
	Seconds    float64  `json:"seconds"`  // from the first one's start until all had synced
	Upstream   upstream `json:"upstream"` // including the feed's own sync
	Cached     int      `json:"watchesFromCache"`
	Refused    int      `json:"refused"`
	ProxyCPU   float64  `json:"proxyCPUSeconds"`
	APICPU     float64  `json:"apiserverCPUSeconds"`
}

// stampedes measures herds of each size on the quiet collections with objects.
func (b *bench) stampedes(ctx context.Context, collections []collection) (rows []herd, err error) {
	var errs []error
	for i := range collections {
		c := &collections[i]
		if c.objects == 0 || c.updates > 0 {
			continue
		}
		for _, n := range b.herds {
			if ctx.Err() != nil {
				return rows, errors.Join(errs...)
			}
			b.say("%s %s: a herd of %d", c.name, c.gvr.Resource, n)
			row, err := b.stampede(ctx, c, n)
			if err != nil {
				errs = append(errs, err)
			}
			if row.Members > 0 {
				rows = append(rows, row)
			}
		}
	}
	return rows, errors.Join(errs...)
}

func (b *bench) stampede(ctx context.Context, c *collection, n int) (row herd, err error) {
	proxy, err := b.startProxy(ctx)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	var meter spending
	if err := meter.begin(ctx, b.api, proxy); err != nil {
		return row, err
	}
	row = herd{Collection: c.name, Resource: c.gvr.Resource, Objects: c.objects, Members: n, Decoding: n <= informersMax}
	client := follow
	if row.Decoding {
		client = inform
	}
	m := newMembers(n)
	row.Seconds, err = m.gather(ctx, client, proxy.RESTConfig(), c, func() error { return meter.end(ctx) })
	row.Synced = int(m.synced.Load())
	row.Upstream, row.Cached, row.Refused = meter.counters.upstream, meter.counters.watches, meter.counters.refused
	row.ProxyCPU, row.APICPU = meter.proxyCPU.Seconds(), meter.apiCPU.Seconds()
	return row, err
}

// members are the clients of a herd. All stay until the last one has synced.
type members struct {
	n      int
	synced atomic.Int64
	all    chan struct{} // closed when all have synced
}

func newMembers(n int) *members { return &members{n: n, all: make(chan struct{})} }

// gather starts the members, calls there for each member that has synced or failed, and then stops
// them.
func (m *members) gather(ctx context.Context, client syncer, to *rest.Config, c *collection, there func() error) (seconds float64, err error) {
	coming, leave := context.WithTimeoutCause(ctx, herdLimit, fmt.Errorf("not within %v", herdLimit))
	defer leave()
	began := time.Now()
	var running sync.WaitGroup
	ended := make(chan struct{})
	var failed error
	running.Go(func() {
		defer close(ended)
		failed = workload.Parallel(coming, m.n, m.n, func(ctx context.Context, i int) error {
			if err := sleep(ctx, herdTime*time.Duration(i)/time.Duration(m.n)); err != nil {
				return err
			}
			return m.join(ctx, client, to, c)
		})
	})
	select {
	case <-m.all:
		seconds = time.Since(began).Seconds()
		err = there()
	case <-ended:
		seconds = time.Since(began).Seconds()
		err = errors.Join(fmt.Errorf("%d of %d informers of %s had synced: %w", m.synced.Load(), m.n, c.gvr.Resource, failed), there())
	}
	leave()
	running.Wait()
	return seconds, err
}

// join runs one member.
func (m *members) join(ctx context.Context, client syncer, to *rest.Config, c *collection) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wrong error
	err := client(ctx, to, c, func(objects int) {
		if wrong = c.check(objects); wrong != nil {
			cancel(wrong)
			return
		}
		if m.synced.Add(1) == int64(m.n) {
			close(m.all)
		}
	})
	return errors.Join(wrong, err)
}
