package upstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// This file connects feeds with the files of their caches.

// Restore starts the feeds that have saved caches, and returns at once. It must be called
// before Open.
func (fs *Feeds) Restore(s *Store) error {
	fs.store = s
	keys, err := s.saved()
	for _, key := range keys {
		if _, err := fs.feed(key, time.Now()); errors.Is(err, ErrExcluded) {
			fs.log.Info("saved cache is removed", zap.Any("resource", key.gvr), zap.Error(err))
			_ = s.remove(key)
		}
	}
	return err
}

// Save writes the caches that have changed since their last save. It must not be called
// concurrently. The file of a feed that has not started yet stays as it is.
func (fs *Feeds) Save() error {
	if fs.store == nil {
		return nil
	}
	began, saved := time.Now(), 0
	var err error
	for _, f := range fs.list() {
		rv, epoch := f.standing()
		// A cache that has lost upstream may soon turn out to be wrong.
		if _, lost := f.Lost(); lost || !f.cache.Stats().Ready || f.saved == (standing{rv, epoch}) {
			continue
		}
		saveErr := fs.store.save(f)
		if _, now := f.standing(); now != epoch { // the written state was abandoned meanwhile
			saveErr = errors.Join(saveErr, fs.store.remove(f.key()))
		}
		if saveErr != nil {
			fs.metrics.saves.WithLabelValues(saveFailed).Inc()
			f.log.Warn("cache could not be saved", zap.Error(saveErr))
			err = errors.Join(err, saveErr)
			continue
		}
		fs.metrics.saves.WithLabelValues(saveDone).Inc()
		f.saved = standing{rv, epoch}
		saved++
	}
	fs.log.Debug("saved caches", zap.Int("caches", saved), zap.Duration("took", time.Since(began)))
	return err
}

// standing is a cache's position when it was saved.
type standing struct{ rv, epoch uint64 }

// forgetSaved removes the file of a cache that will not be needed soon.
func (fs *Feeds) forgetSaved(key feedKey) {
	if fs.store == nil {
		return
	}
	if err := fs.store.remove(key); err != nil {
		fs.log.Warn("saved cache could not be removed", zap.Error(err))
	}
}

// restore fills the cache from a usable file, if there is one. The cache answers nobody before it
// has reached upstream's revision at the feed's start. It returns whether it restored the cache.
func (f *Feed) restore(upstreamAt uint64) bool {
	if f.store == nil {
		return false
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
		f.fresh.running.Go(func() { f.verifyRestored(f.fresh.ctx, upstreamAt) })
		return true
	case !errors.Is(err, fs.ErrNotExist):
		f.metrics.restores.WithLabelValues("refused").Inc()
		f.log.Warn("saved cache is not used", zap.Error(err))
		if errors.Is(err, errUseless) || errors.Is(err, errWentBack) {
			_ = f.store.remove(f.key())
		}
	}
	return false
}

const (
	// settleStream is how long the stream may take to bring what happened while no
	// proxy ran, before a side watch helps.
	settleStream = 100 * time.Millisecond
	// settleTries is how often a restored cache is compared with upstream. Then it is given up, and
	// the state is read from upstream.
	settleTries = 10
)

// verifyRestored lets the restored cache answer once it has reached rv and holds what upstream has.
// A stream that resumes at its resourceVersion is not enough: etcd may have been
// restored to an earlier state and have moved on since. A state that was read from upstream, in a
// later epoch, needs no comparison.
func (f *Feed) verifyRestored(ctx context.Context, rv uint64) {
	defer close(f.settled)
	backoff := servers.Reconnect
	for try := 1; ctx.Err() == nil && f.cache.Stats().Epoch == 1; try++ {
		at, err := f.compareRestored(ctx, rv)
		if err == nil {
			return
		}
		rv = max(rv, at) // upstream may have moved on without an event on the stream
		f.log.Info("restored cache is not up to date", zap.Error(err))
		if errors.Is(err, errDiffers) || try >= settleTries {
			f.interrupt(errDiffers)
		}
		client.Sleep(ctx, max(backoff.Step(), client.RetryAfter(err)))
	}
}

// compareRestored waits for the cache to reach rv and compares it with upstream at rv or later.
func (f *Feed) compareRestored(ctx context.Context, rv uint64) (at uint64, err error) {
	if !f.reaches(ctx, rv, settleStream) {
		end, err := f.health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return rv, err
		}
		defer end()
		if err := f.sideWatch(ctx, rv); err != nil {
			return rv, err
		}
	}
	list, err := f.client.Metadata(ctx, f.cache.Resource(), rv)
	if err != nil {
		return rv, err
	}
	at = list.RV
	if !f.reaches(ctx, at, settleStream) {
		return at, fmt.Errorf("%w: it is not at %d", errInconclusive, at)
	}
	ours, err := f.cache.SnapshotAt(at)
	if err != nil {
		return at, fmt.Errorf("%w: %w", errInconclusive, err)
	}
	same := ours.Len() == len(list.States)
	for _, is := range list.States {
		o := ours.Get(is.Key)
		same = same && o != nil && o.UID() == is.UID && o.ResourceVersion() == is.ResourceVersion
	}
	if !same {
		return at, fmt.Errorf("%w at %d", errDiffers, at)
	}
	return at, nil
}
