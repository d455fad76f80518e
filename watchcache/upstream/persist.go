package upstream

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

// This file ties feeds to the files of their caches.

// Restore starts the feeds that there are saved caches of, and returns at once. It is called
// before any feed is opened.
func (fs *Feeds) Restore(s *Store) error {
	fs.store = s
	keys, err := s.saved()
	for _, key := range keys {
		if _, err := fs.feed(key); err != nil { // it is not cached any more
			fs.log.Info("saved cache is removed", zap.Any("resource", key.gvr), zap.Error(err))
			_ = s.remove(key)
		}
	}
	return err
}

// Save writes the caches that have changed since they were written. It must not be called
// concurrently. The file of a feed that could not start for a while stays as it is.
func (fs *Feeds) Save() error {
	if fs.store == nil {
		return nil
	}
	began, saved := time.Now(), 0
	var err error
	for _, f := range fs.list() {
		rv, epoch := f.standing()
		if stats := f.cache.Stats(); !stats.Ready || f.saved == (standing{rv, epoch}) {
			continue
		}
		if saveErr := fs.store.save(f); saveErr != nil {
			fs.metrics.saves.WithLabelValues("failed").Inc()
			f.log.Warn("cache could not be saved", zap.Error(saveErr))
			err = errors.Join(err, saveErr)
			continue
		}
		fs.metrics.saves.WithLabelValues("saved").Inc()
		f.saved = standing{rv, epoch}
		saved++
	}
	fs.log.Debug("saved caches", zap.Int("caches", saved), zap.Duration("took", time.Since(began)))
	return err
}

// standing is where a cache was when it was saved.
type standing struct{ rv, epoch uint64 }

// forgetSaved removes the file of a cache that nobody will want again soon.
func (fs *Feeds) forgetSaved(key feedKey) {
	if fs.store == nil {
		return
	}
	if err := fs.store.remove(key); err != nil {
		fs.log.Warn("saved cache could not be removed", zap.Error(err))
	}
}

// restore fills the cache from a file, if there is one of use. Nobody is answered from it
// before it has got to where upstream was when the feed started.
func (f *Feed) restore(ctx context.Context, upstreamAt uint64) {
	if f.store == nil {
		close(f.settled)
		return
	}
	began := time.Now()
	err := f.store.load(f, upstreamAt)
	switch {
	case err == nil:
		at := f.cache.Stats()
		f.synced = true
		f.writing.Lock()
		f.writing.epoch++
		f.writing.Unlock()
		f.metrics.restores.WithLabelValues("restored").Inc()
		f.log.Info("restored", zap.Int("objects", at.Objects), zap.Uint64("resourceVersion", at.ResourceVersion),
			zap.Uint64("since", at.Since), zap.Duration("took", time.Since(began)))
		f.fresh.running.Go(func() { f.settle(ctx, upstreamAt) })
		return
	case !errors.Is(err, fs.ErrNotExist):
		f.metrics.restores.WithLabelValues("refused").Inc()
		f.log.Warn("saved cache is removed", zap.Error(err))
		_ = f.store.remove(f.key())
	}
	close(f.settled)
}

const (
	// settleStream is how long the stream may take to bring what has happened while there
	// was no proxy, before a side watch helps.
	settleStream = 100 * time.Millisecond
	settlePause  = 500 * time.Millisecond
)

// settle waits until the cache has got to rv.
func (f *Feed) settle(ctx context.Context, rv uint64) {
	defer close(f.settled)
	for !f.reaches(ctx, rv, settleStream) && ctx.Err() == nil {
		if err := f.sideWatch(ctx, rv); err != nil {
			f.log.Debug("restored cache is not up to date", zap.Error(err))
			sleep(ctx, settlePause)
		}
	}
}
