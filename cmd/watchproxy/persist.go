package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// persist restores the caches and saves them from time to time. The returned function saves
// them a last time. A directory that cannot be used is a failed save each time, so that it is noticed.
func persist(
	ctx context.Context, p config.Persistence, feeds *upstream.Feeds, client *upstream.Client, registry prometheus.Registerer, log *zap.Logger,
) (save func(), err error) {
	if p.Directory == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(p.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("cache.persistence.directory: %w", err)
	}
	saves := saveCounter(registry)
	for _, outcome := range []string{saved, failed} { // an increase from nothing would be none
		saves.WithLabelValues(outcome)
	}
	write := func() {
		if err := feeds.Save(); err != nil {
			log.Warn("not all caches could be saved", zap.Error(err))
		}
	}
	store, err := upstream.OpenStore(ctx, p.Directory, client, log)
	if err != nil { // a start without is better than none
		log.Error("caches are neither restored nor saved", zap.String("directory", p.Directory), zap.Error(err))
		write = saves.WithLabelValues(failed).Inc
	} else if err := feeds.Restore(store); err != nil {
		log.Warn("not all saved caches could be looked at", zap.Error(err))
	}
	ctx, cancel := context.WithCancel(ctx)
	var saving sync.WaitGroup
	saving.Go(func() {
		tick := time.NewTicker(p.Interval.Duration)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				write()
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		saving.Wait()
		write()
	}, nil
}

// The outcomes of a save.
const (
	saved  = "saved"
	failed = "failed"
)

// saveCounter is the feeds' counter of saves, which they have registered: where there is no store, they count nothing.
func saveCounter(registry prometheus.Registerer) *prometheus.CounterVec {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_cache_saves_total",
		Help: "Caches written to the directory of saved caches, by outcome: saved, failed.",
	}, []string{"outcome"})
	err := registry.Register(counter)
	var known prometheus.AlreadyRegisteredError
	if !errors.As(err, &known) {
		panic(fmt.Sprintf("BUG: the feeds count saves otherwise: %v", err))
	}
	return known.ExistingCollector.(*prometheus.CounterVec)
}
