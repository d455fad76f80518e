package feed

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// WatchLife is the shortest timeout that kube-apiserver gives a watch by default.
const WatchLife = 30 * time.Minute

// follow syncs and watches until ctx ends or there is nothing to follow.
func (f *Feed) follow(ctx context.Context) error {
	for again := servers.NewRetry(f.Health); ; {
		end, err := f.Health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return err
		}
		began, now := time.Now(), f.phase()
		paged := now != watching && f.paged
		if now == watching {
			err = f.watch(ctx, end)
		} else {
			err = f.sync(ctx, end)
		}
		end()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if paged && err == nil {
			continue // the state came from a list; no stream was open yet
		}
		if f.cache.Stats().Ready { // the cache is filled: the stream counts as lost until the next one succeeds
			f.failed(err)
		}
		took := time.Since(began)
		next, reason := f.verdict(ctx, err)
		if next == stopped && f.cache.Stats().Ready && client.Answered(err) && f.Health.IsReturning() {
			next, reason = f.phase(), ""
		}
		switch {
		case next == stopped:
			return err
		case reason == expired && f.beginElsewhere(ctx):
			continue
		case reason != "":
			f.Log.Info("relisting", zap.String("reason", reason), zap.Error(err))
			f.Metrics.Relists.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, reason).Inc()
			f.enter(next)
		case err != nil:
			f.failed(err)
			f.Log.Warn("upstream watch broke", zap.Error(err))
		}
		if !again.After(ctx, took, err, reason != "") {
			return ctx.Err()
		}
	}
}

// urgency says how urgent the feed is for its clients.
func (f *Feed) urgency() servers.Urgency {
	return servers.Urgency{Watched: f.cache.Stats().Cursors > 0, Used: f.lastUsed.Load()}
}

// sync reads the whole state and calls read when it has it. If the state came from a stream, sync
// then follows this stream's changes.
func (f *Feed) sync(ctx context.Context, read func()) error {
	notOlderThan := uint64(0)
	if s, err := f.cache.Snapshot(); err == nil && f.phase() != renewing {
		notOlderThan = s.ResourceVersion()
	}
	if f.paged {
		changes, rv, err := f.Client.List(ctx, f.cache.Resource(), notOlderThan)
		if err != nil {
			return err
		}
		_, err = f.adopt(changes, rv)
		return err
	}
	query := url.Values{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}}
	if notOlderThan > 0 {
		query.Set("resourceVersion", strconv.FormatUint(notOlderThan, 10))
	}
	return f.stream(ctx, query, 0, read)
}

// watch follows the changes after the cache's resourceVersion. It calls opened when upstream has
// accepted the watch.
func (f *Feed) watch(ctx context.Context, opened func()) error {
	if _, lost := f.Lost(); lost && f.wentBack(ctx) {
		// A restored etcd reuses resourceVersions for other content. If the watch resumes at a
		// resourceVersion that the restored etcd has not reached, kube-apiserver accepts it, stays
		// silent until then and skips everything before. So the feed probes first. If the restored
		// etcd is already past the cache's resourceVersion, the probe does not show the restore. It
		// then shows as changes that do not fit the cache, or in a self-check.
		return ErrWentBack
	}
	rv, epoch := f.Standing()
	return f.stream(ctx, url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}}, epoch, opened)
}

// stream opens a watch and reads it to its end. If epoch is not 0, the stream continues that epoch.
// If epoch is 0, the stream first reads the state that begins a new one. It calls followed when it
// has the state and begins to follow changes.
func (f *Feed) stream(ctx context.Context, query url.Values, epoch uint64, followed func()) error {
	wanted := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.touch()
	var dog sync.WaitGroup
	dog.Go(func() { f.guard(ctx, cancel) })
	defer dog.Wait()
	defer cancel(nil)

	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	opened := time.Now()
	resp, err := f.Client.GetAs(ctx, client.AcceptOf(f.Encoding), "watch", f.GVR, client.ResourcePath(f.GVR, ""), query)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or no longer needed
	f.alive()
	if err := client.CheckEncoding(resp, f.Encoding); err != nil {
		return err
	}
	f.past.opened.Store(watchcache.Moment(time.Now()))
	defer f.past.opened.Store(0)
	s := client.NewStream(resp.Body, f.cache.Resource())
	if epoch == 0 {
		if epoch, err = f.consumeInitial(s); err != nil {
			return causeOf(ctx, err)
		}
	}
	followed()
	// Not earlier: whatever a freshness run finds wrong before, the state that is being read
	// corrects it.
	f.interruptible(cancel)
	defer f.interruptible(nil)
	err = f.consume(s, epoch, f.alive)
	if wanted.Err() == nil && (err != nil || time.Since(opened) < WatchLife) {
		f.Ledger.Forget() // the next stream may come from a restored etcd
	}
	if err == nil && f.cache.Resource().SelfDescribing && time.Since(opened) < WatchLife {
		err = errCutShort
	}
	return causeOf(ctx, err)
}

// causeOf returns the watchdog's reason if it cut the stream, else err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// adopt puts a listed state into the cache, either as events for the difference or as a new epoch.
// It returns the epoch to which the following changes belong.
func (f *Feed) adopt(changes []watchcache.Change, rv uint64) (epoch uint64, err error) {
	objects := compact(changes)
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.phase == stopped {
		return 0, errOtherEpoch
	}
	if stats := f.cache.Stats(); stats.Ready && f.writing.phase != renewing {
		if rv < stats.ResourceVersion {
			return 0, fmt.Errorf("%w: %d, cached at %d", errOvertaken, rv, stats.ResourceVersion)
		}
		err := f.cache.Replace(objects, rv, time.Now())
		if err == nil {
			f.writing.phase = watching
			f.writing.epoch++
			return f.writing.epoch, nil
		}
		f.Log.Warn("relist does not continue the cached state; ending its watches", zap.Error(err))
	}
	if f.Store != nil {
		_ = f.Store.Remove(f.Key) // a restart must not resume from it
	}
	f.cache.Reset(objects, rv)
	f.writing.phase = watching
	f.writing.epoch++
	f.Log.Info("synced", zap.Int("objects", len(objects)), zap.Uint64("resourceVersion", rv))
	return f.writing.epoch, nil
}

// expired is the reason for a relist when upstream no longer has the history.
const expired = "expired"

// verdict decides what the feed does after the end of a stream. A nil error is a clean end. If
// verdict returns a reason, the feed reads the state again. Otherwise it continues its phase,
// unless it has to stop.
func (f *Feed) verdict(ctx context.Context, err error) (next phase, reason string) {
	switch {
	case err == nil:
	case errors.Is(err, ErrWentBack):
		return renewing, "went-back"
	case errors.Is(err, ErrDiffers):
		return renewing, "self-check" // the cache's watches have missed an unknown number of events
	case errors.Is(err, errCutShort) && f.Encoding == object.Table:
		return stopped, "" // the definition may have changed, and a relist compares no cells
	case errors.Is(err, errCutShort):
		return syncing, "cut-short"
	case errors.Is(err, watchcache.ErrDiverged), errors.Is(err, errOtherEpoch):
		return syncing, "diverged"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return syncing, expired
	case apierrors.IsInvalid(err) && !f.paged:
		f.paged = true
		return syncing, "no-streaming"
	case client.IsTooLarge(err):
		// Either upstream lags behind the cache, or it was restored to an earlier state. Only a
		// consistent read can tell.
		if f.wentBack(ctx) {
			return renewing, "went-back"
		}
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err), apierrors.IsBadRequest(err),
		errors.Is(err, object.ErrNoEncoding), errors.Is(err, object.ErrColumns), errors.Is(err, object.ErrOpaqueResourceVersion), errors.Is(err, object.ErrMalformed):
		return stopped, ""
	}
	return f.phase(), ""
}

// wentBack probes upstream and returns whether its revision went back.
func (f *Feed) wentBack(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	_, err := f.Probe(ctx)
	return errors.Is(err, ErrWentBack)
}
