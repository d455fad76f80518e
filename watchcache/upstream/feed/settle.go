package feed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// This file starts a feed from a saved cache. Clients are served once the cache is verified.

const (
	// settleStream is how long a feed waits for the stream to deliver the changes since the save.
	// Then the feed opens a side watch.
	settleStream = 100 * time.Millisecond
	// restoreTries is the number of comparisons between a restored cache and upstream. Then the
	// feed drops the cache and reads the state from upstream.
	restoreTries = 10
)

// settle calls check until it succeeds, and then lets the cache serve clients. If the cache differs
// from upstream, or after too many tries, settle makes the run loop read the present state.
func (f *Feed) settle(ctx context.Context, tries int, check func() error) {
	defer close(f.settled)
	backoff, givenUp := servers.Reconnect, false
	for ctx.Err() == nil {
		err := check()
		if err == nil {
			return
		}
		f.Log.Info("cache is not up to date", zap.Error(err))
		if tries--; errors.Is(err, ErrDiffers) || tries <= 0 && !givenUp {
			givenUp = f.Interrupt(ErrDiffers)
		}
		client.Sleep(ctx, max(backoff.Step(), client.RetryAfter(err)))
	}
}

// savable returns what wrote the cached bytes. ok is false if upstream has no history to resume from,
// or a later start could not verify the saved bytes.
func (f *Feed) savable() (w store.Writer, ok bool) {
	r := f.cache.Resource()
	v, custom := f.Definition()
	if custom {
		w.Definition = fmt.Sprintf("%s/%d", v.UID, v.Generation)
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	w.Server = f.writing.server
	// An aggregated API has its own revisions and version. A Table's rows are quickly read again.
	return w, w.Server != "" && !r.NoWatchCache && r.SelfDescribing == custom && !f.Aggregated && f.Encoding != object.Table
}

// Save writes the cache to its file if the cache has changed since the last save. Save must not be
// called concurrently.
func (f *Feed) Save() (saved bool, err error) {
	rv, epoch := f.Standing()
	// While upstream is lost, the cache may be wrong.
	if _, lost := f.Lost(); lost || !f.cache.Stats().Ready || f.saved == (standing{rv, epoch}) {
		return false, nil
	}
	if w, ok := f.savable(); ok {
		err = f.Store.Save(f.cache, w)
	} else {
		err = f.Store.Remove(f.Key)
	}
	if _, now := f.Standing(); now != epoch { // the saved state was abandoned during the save
		err = errors.Join(err, f.Store.Remove(f.Key))
	}
	if err != nil {
		return false, err
	}
	f.saved = standing{rv, epoch}
	return true, nil
}

// restore fills the cache from its file. It returns false if there is no usable file, or if the
// file is newer than upstream.
func (f *Feed) restore(upstreamAt uint64) bool {
	if f.Store == nil || f.server == "" && !f.Aggregated { // the version decides whether a file is usable
		return false
	}
	began := time.Now()
	w, ok := f.savable()
	if !ok {
		w.Definition = "not to be saved" // matches no file
	}
	err := f.Store.Load(f.cache, w, upstreamAt)
	switch {
	case err == nil:
		at := f.cache.Stats()
		f.writing.Lock()
		f.adoptedLocked()
		f.writing.Unlock()
		f.Metrics.Restores.WithLabelValues("restored").Inc()
		f.Log.Info("restored", zap.Int("objects", at.Objects), zap.Uint64("resourceVersion", at.ResourceVersion),
			zap.Uint64("since", at.Since), zap.Duration("took", time.Since(began)))
		return true
	case !errors.Is(err, fs.ErrNotExist):
		f.Metrics.Restores.WithLabelValues("refused").Inc()
		f.Log.Warn("saved cache is not used", zap.Error(err))
		if errors.Is(err, store.ErrUseless) {
			_ = f.Store.Remove(f.Key)
		}
	}
	return false
}

// verifyRestored lets the restored cache serve clients once it has reached rv and equals upstream.
// A resumed stream does not prove equality: etcd may have been restored to an earlier state and
// then have passed the cache's resourceVersion again. If the run loop has already read the state
// from upstream, no comparison is needed.
func (f *Feed) verifyRestored(ctx context.Context, rv uint64) {
	f.settle(ctx, restoreTries, func() error {
		if f.cache.Stats().Epoch != 1 {
			return nil
		}
		at, err := f.compareRestored(ctx, rv)
		rv = max(rv, at) // upstream may be at a newer revision without an event on the stream
		return err
	})
}

// compareRestored waits until the cache reaches rv. It then compares the cache with upstream at rv
// or later.
func (f *Feed) compareRestored(ctx context.Context, rv uint64) (at uint64, err error) {
	if !f.Reaches(ctx, rv, settleStream) {
		end, err := f.Health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return rv, err
		}
		defer end()
		if err := f.sideWatch(ctx, rv); err != nil {
			return rv, err
		}
	}
	list, err := f.Client.Metadata(ctx, f.cache.Resource(), rv)
	if err != nil {
		return rv, err
	}
	if !f.Reaches(ctx, list.RV, settleStream) {
		return list.RV, fmt.Errorf("%w: it is not at %d", errInconclusive, list.RV)
	}
	return list.RV, f.differs(list.RV, list.States)
}
