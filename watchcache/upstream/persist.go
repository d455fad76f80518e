package upstream

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// Restore starts the feeds that have saved caches, without waiting for them. It must be called
// before Open.
func (fs *Feeds) Restore(s *store.Store) error {
	fs.Store = s
	keys, err := s.Saved()
	for _, key := range keys {
		if _, err := fs.feed(key, time.Now()); errors.Is(err, ErrExcluded) || errors.Is(err, ErrOutOfScope) {
			fs.Log.Info("saved cache is removed", zap.Any("resource", key.GVR), zap.Error(err))
			_ = s.Remove(key)
		}
	}
	return err
}

// Save writes the caches that have changed since their last save. It must not be called
// concurrently. If a feed has not started yet, its file stays unchanged.
func (fs *Feeds) Save() error {
	if fs.Store == nil {
		return nil
	}
	began, saved := time.Now(), 0
	var failed error
	for _, f := range fs.list() {
		done, err := f.Save()
		switch {
		case err != nil:
			fs.metrics.saves.WithLabelValues(saveFailed).Inc()
			f.Log.Warn("cache could not be saved", zap.Error(err))
			failed = errors.Join(failed, err)
		case done:
			fs.metrics.saves.WithLabelValues(saveDone).Inc()
			saved++
		}
	}
	fs.Log.Debug("saved caches", zap.Int("caches", saved), zap.Duration("took", time.Since(began)))
	return failed
}

// forgetSaved removes the file of a cache that is no longer needed.
func (fs *Feeds) forgetSaved(key store.Key) {
	if fs.Store == nil {
		return
	}
	if err := fs.Store.Remove(key); err != nil {
		fs.Log.Warn("saved cache could not be removed", zap.Error(err))
	}
}
