package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	// syncLimit limits the time of a client's sync.
	syncLimit = time.Minute
	// pause is the shortest time between two informers; the longest is twice that. The pauses vary,
	// so they are not in step with periodic work of the apiserver. They are long enough for etcd's
	// revision to move on.
	pause = 100 * time.Millisecond
)

// solo is a row: informers that sync with a collection one after the other, at the apiserver and
// through the proxy in turn. The proxy has cached the collection before the first informer.
type solo struct {
	Collection string   `json:"collection"`
	Resource   string   `json:"resource"`
	Objects    int      `json:"objects"`
	Updates    float64  `json:"updatesPerSecond"` // that the apiserver accepted
	Direct     times    `json:"direct"`           // each is one request
	Proxied    times    `json:"proxied"`
	Cached     int      `json:"watchesFromCache"`
	Upstream   upstream `json:"upstream"`
}

// solos measures all rows with one proxy. It omits a row that it cannot measure.
func (b *bench) solos(ctx context.Context, collections []collection) (rows []solo, err error) {
	proxy, err := b.startProxy(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	var errs []error
	for i := range collections {
		c := &collections[i]
		b.say("%s %s: %d informers at the apiserver, %d through the proxy", c.name, c.gvr.Resource, b.informers, b.informers)
		row, err := b.solo(ctx, c, proxy)
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		rows = append(rows, row)
	}
	return rows, errors.Join(errs...)
}

func (b *bench) solo(ctx context.Context, c *collection, proxy *cluster.Proxy) (row solo, err error) {
	if c.updates == 0 {
		return b.inTurn(ctx, c, proxy)
	}
	const limit = 8 // in flight
	var updates atomic.Int64
	began := time.Now()
	err = workload.During(ctx, c.updates, limit, func(ctx context.Context, i int) error {
		updates.Add(1)
		return b.updatePod(ctx, i)
	}, func(ctx context.Context) error {
		row, err = b.inTurn(ctx, c, proxy)
		return err
	})
	row.Updates = float64(updates.Load()) / time.Since(began).Seconds()
	return row, err
}

func (b *bench) inTurn(ctx context.Context, c *collection, proxy *cluster.Proxy) (solo, error) {
	row := solo{Collection: c.name, Resource: c.gvr.Resource, Objects: c.objects}
	ways := []struct {
		to    *rest.Config
		times *times
	}{{b.api.RESTConfig(), &row.Direct}, {proxy.RESTConfig(), &row.Proxied}}
	// The first informer of each kind does not count, because of the feed's own sync and because
	// programs warm up.
	for _, way := range ways {
		if _, err := c.time(ctx, way.to); err != nil {
			return row, err
		}
	}
	before, err := readCounters(ctx, proxy)
	if err != nil {
		return row, err
	}
	for range b.informers {
		for _, way := range ways {
			runtime.GC() // collect the garbage of the last informer
			if err := sleep(ctx, pause+rand.N(pause)); err != nil {
				return row, err
			}
			took, err := c.time(ctx, way.to)
			if err != nil {
				return row, err
			}
			*way.times = append(*way.times, took)
		}
	}
	after, err := readCounters(ctx, proxy)
	if err != nil {
		return row, err
	}
	spent := after.since(before)
	row.Upstream, row.Cached = spent.upstream, spent.watches
	return row, nil
}

// time returns how long an informer takes to sync.
func (c *collection) time(ctx context.Context, to *rest.Config) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, syncLimit, fmt.Errorf("not within %v", syncLimit))
	defer cancel()
	has := 0
	began := time.Now()
	err = inform(ctx, to, c, func(objects int) {
		took, has = time.Since(began), objects
		cancel()
	})
	if err == nil {
		err = c.check(has)
	}
	return took, err
}

// check fails if a client has not synced exactly the collection.
func (c *collection) check(has int) error {
	if has != c.objects {
		return fmt.Errorf("informer of %s synced with %d objects instead of %d", c.gvr.Resource, has, c.objects)
	}
	return nil
}
