package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// persist restores the caches and saves them at an interval. The returned function saves them for
// the last time. If the directory is unusable, each save fails, so the metric shows the problem.
func persist(
	ctx context.Context, p config.Persistence, feeds *upstream.Feeds, client *client.Client, metrics *upstream.Metrics, log *zap.Logger,
) (save func(), err error) {
	if p.Directory == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(p.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("cache.persistence.directory: %w", err)
	}
	metrics.ExpectSaves()
	write := func() {
		if err := feeds.Save(); err != nil {
			log.Warn("not all caches could be saved", zap.Error(err))
		}
	}
	saved, err := store.Open(ctx, p.Directory, client, log)
	if err != nil { // an unusable directory does not prevent the start
		log.Error("caches are neither restored nor saved", zap.String("directory", p.Directory), zap.Error(err))
		write = metrics.SaveFailed
	} else if err := feeds.Restore(saved); err != nil {
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
