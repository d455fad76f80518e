package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// settled is the time after which memory is measured.
func (b *bench) settled() { time.Sleep(b.each) }

// fresh starts another proxy of the same binary, without caches. The apiserver is always the same.
func (b *bench) fresh(ctx context.Context, s *server) (*server, error) {
	if s.proxy == nil {
		return s, nil
	}
	return b.startProxy(ctx, s.name, s.binary)
}

// stop ends a fresh proxy.
func (b *bench) stop(s *server) error {
	if s.proxy == nil {
		return nil
	}
	return s.proxy.Stop()
}

var allPods = request{paths: []string{"/api/v1/pods?resourceVersion=0"}}

// idle measures the memory of a proxy before its first request.
func (b *bench) idle(ctx context.Context, s *server) (got sample, err error) {
	if s, err = b.fresh(ctx, s); err != nil {
		return got, err
	}
	b.settled()
	return b.resident(s)
}

func (b *bench) resident(s *server) (got sample, err error) {
	got.units = 1
	got.memory, _, err = cluster.MemoryOf(s.process.PID())
	if stopErr := b.stop(s); err == nil {
		err = stopErr
	}
	return got, err
}

// atRest measures the memory of a server that has answered one list of all pods.
func (b *bench) atRest(ctx context.Context, s *server) (got sample, err error) {
	if s, err = b.fresh(ctx, s); err != nil {
		return got, err
	}
	if _, _, err := s.once(ctx, road{}, allPods); err != nil {
		return got, err
	}
	b.settled()
	return b.resident(s)
}

// underLists measures the peak of a server's memory during lists of all pods.
func (b *bench) underLists(ctx context.Context, s *server) (got sample, err error) {
	if err := cluster.ResetPeak(s.process.PID()); err != nil {
		return got, err
	}
	const clients = 16
	if _, err := b.reads(clients, road{}, allPods)(ctx, s); err != nil {
		return got, err
	}
	_, got.memory, err = cluster.MemoryOf(s.process.PID())
	got.units = 1
	return got, err
}

// cold measures a proxy from its start until it has all pods: the time, the processor time, and the
// peak of its memory. The list matches nothing, and waits for the cache.
func (b *bench) cold(ctx context.Context, s *server) (got sample, err error) {
	if s, err = b.fresh(ctx, s); err != nil {
		return got, err
	}
	began := time.Now()
	nothing := request{paths: []string{"/api/v1/pods?resourceVersion=0&limit=1&fieldSelector=metadata.name%3Dnone"}}
	if _, _, err := s.once(ctx, road{}, nothing); err != nil {
		return got, err
	}
	got.units, got.ms = 1, []float64{time.Since(began).Seconds() * 1e3}
	if got.cpu, err = s.process.CPU(); err != nil {
		return got, err
	}
	if _, got.memory, err = cluster.MemoryOf(s.process.PID()); err != nil {
		return got, err
	}
	m, err := s.proxy.Metrics(ctx)
	if err != nil {
		return got, err
	}
	if has := m.Sum("watchproxy_feed_objects"); has < float64(b.pods) {
		return got, fmt.Errorf("%s has %.0f of %d pods", s.name, has, b.pods)
	}
	return got, b.stop(s)
}

// idleWatches measures the memory of watches without events.
func (b *bench) idleWatches(at road) func(context.Context, *server) (sample, error) {
	return func(ctx context.Context, s *server) (got sample, err error) {
		if _, _, err := s.once(ctx, road{}, allPods); err != nil { // fills the cache
			return got, err
		}
		without, err := b.collected(ctx, s)
		if err != nil {
			return got, err
		}
		c, err := b.watch(ctx, s, at, b.watches)
		if err != nil {
			return got, err
		}
		defer c.close()
		with, err := b.collected(ctx, s)
		return sample{units: b.watches, memory: with - without}, err
	}
}

// collected returns a server's memory. A proxy first collects its garbage, on request; the second
// time frees what has finalizers.
func (b *bench) collected(ctx context.Context, s *server) (int64, error) {
	if s.proxy != nil {
		admin := cluster.NewEndpoint("admin", s.proxy.AdminURL, "", nil)
		defer admin.CloseIdle()
		for range 2 {
			got, err := admin.Ask(ctx, cluster.Get("/debug/pprof/heap?gc=1"))
			if err != nil || got.Status != http.StatusOK {
				return 0, fmt.Errorf("the proxy's profile: %d: %w", got.Status, err)
			}
		}
	}
	b.settled()
	rss, _, err := cluster.MemoryOf(s.process.PID())
	return rss, err
}
