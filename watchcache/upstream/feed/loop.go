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
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

// WatchLife is the shortest timeout that kube-apiserver gives a watch by default.
const WatchLife = 30 * time.Minute

// follow syncs and watches until ctx ends or an error stops the feed.
func (f *Feed) follow(ctx context.Context) error {
	for again := client.NewRetry(f.Shared.Health); ; {
		endTurn, err := f.turn(ctx)
		if err != nil {
			return err
		}
		began, now := time.Now(), f.phase()
		paged := now != watching && (f.loop.paged || f.loop.pages)
		if now == watching {
			err = f.watch(ctx, endTurn)
		} else {
			err = f.sync(ctx, paged, endTurn)
			f.loop.pages = false
		}
		endTurn()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if f.loop.listed = paged && err == nil; f.loop.listed {
			continue // the state came from a list; no stream was open yet
		}
		if f.cache.Stats().Ready { // upstream counts as lost until the next stream succeeds
			f.Failed(err, errors.Is(err, errSilent))
		}
		took := time.Since(began)
		next, reason := f.nextPhase(ctx, err)
		answered := client.Answered(err) || errors.Is(err, discovery.ErrNotServed)
		if next == stopped && f.cache.Stats().Ready && answered && f.Shared.Health.IsReturning() {
			next, reason = f.phase(), ""
		}
		switch {
		case next == stopped:
			return err
		case reason == expired && f.beginElsewhere(ctx):
			continue
		case reason != "":
			f.Log.Info("relisting", zap.String("reason", reason), zap.Error(err))
			f.Shared.Metrics.Relists.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, reason).Inc()
			f.enter(next)
		case err != nil:
			f.Failed(err, errors.Is(err, errSilent))
			f.Log.Warn("upstream watch broke", zap.Error(err))
		}
		if !again.After(ctx, took, err) {
			return ctx.Err()
		}
	}
}

// turn waits for the run loop's turn to ask upstream for much. endTurn must be called once upstream
// has accepted a watch, or the state has been read.
func (f *Feed) turn(ctx context.Context) (endTurn func(), err error) {
	f.life.queued.Store(true)
	defer f.life.queued.Store(false)
	defer f.Touch()
	return f.Shared.Health.Turn(ctx)
}

// sync reads the whole state. If the state came from a stream, sync continues to follow that
// stream.
func (f *Feed) sync(ctx context.Context, paged bool, endTurn func()) error {
	if err := f.describeAgain(ctx); err != nil {
		return err
	}
	notOlderThan := uint64(0)
	if s, err := f.cache.Snapshot(); err == nil && f.phase() != renewing {
		notOlderThan = s.ResourceVersion()
	}
	if paged {
		changes, rv, err := f.Shared.Client.List(ctx, f.cache, notOlderThan, "NotOlderThan")
		if err == nil {
			_, err = f.adopt(changes, rv)
		}
		return err
	}
	query := url.Values{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}}
	if notOlderThan > 0 {
		query.Set("resourceVersion", strconv.FormatUint(notOlderThan, 10))
	}
	return f.stream(ctx, query, 0, endTurn)
}

// watch follows the changes after the cache's resourceVersion.
func (f *Feed) watch(ctx context.Context, endTurn func()) error {
	if _, lost := f.Lost(); lost && f.wentBack(ctx) {
		// A restored etcd reuses resourceVersions for other content. If it has not reached the
		// cache's resourceVersion yet, kube-apiserver accepts the watch and skips all events up to
		// that resourceVersion. So the feed probes first. If etcd is already past it, later changes
		// that do not fit the cache, or a self-check, detect the restore.
		return ErrWentBack
	}
	rv, epoch := f.Position()
	return f.stream(ctx, url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}}, epoch, endTurn)
}

// stream opens a watch and reads it until it ends. If epoch is not 0, the stream continues that
// epoch. If epoch is 0, the stream first reads the state that begins a new epoch.
func (f *Feed) stream(ctx context.Context, query url.Values, epoch uint64, endTurn func()) error {
	wanted := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.Touch()
	var dog sync.WaitGroup
	dog.Go(func() { f.guard(ctx, cancel) })
	defer dog.Wait()
	defer cancel(nil)

	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	opened := time.Now()
	resp, err := f.Shared.Client.GetCollection(ctx, client.AcceptOf(f.Encoding), "watch", f.cache.Resource(), query)
	if err != nil {
		return client.CauseOf(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or no longer needed
	f.Alive()
	if err := client.CheckEncoding(resp, f.Encoding); err != nil {
		return err
	}
	f.resume.opened.Store(watchcache.Moment(time.Now()))
	defer f.resume.opened.Store(0)
	s := client.NewStream(resp.Body, f.cache.Resource())
	if epoch == 0 {
		if !f.Aggregated {
			f.Shared.Client.Compresses.Store(resp.Uncompressed)
		}
		filling, filled := context.WithCancel(ctx)
		dog.Go(func() { f.guardFill(filling, cancel) })
		epoch, err = f.consumeInitial(s)
		if filled(); err != nil {
			return client.CauseOf(ctx, err)
		}
	} else if !f.loop.listed { // otherwise versions that take turns would cause one list after another
		since := time.Now()
		dog.Go(func() { f.checkServer(ctx, epoch, since, cancel) })
	}
	endTurn()
	// The stream is not interruptible before. If a freshness run detects an error before, the state
	// that is being read corrects it.
	f.interruptible(cancel)
	defer f.interruptible(nil)
	err = f.consume(s, epoch, f.Alive)
	if wanted.Err() == nil && (err != nil || time.Since(opened) < WatchLife) {
		f.Shared.Ledger.Forget() // the next stream may come from a restored etcd
	}
	if err == nil && f.cache.Resource().SelfDescribing && time.Since(opened) < WatchLife {
		err = errCutShort
	}
	return client.CauseOf(ctx, err)
}

// adopt writes a newly read state to the cache. The state becomes events for the differences or, if
// that is impossible, a new epoch of the cache. adopt returns the feed's epoch for the following
// changes.
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
		if f.writing.phase == correcting {
			f.cache.Distrust()
		}
		err := f.cache.Replace(objects, rv, time.Now())
		if err == nil {
			return f.adoptedLocked(), nil
		}
		f.Log.Warn("relist does not continue the cached state; ending its watches", zap.Error(err))
	}
	f.cache.Reset(objects, rv)
	f.Log.Info("synced", zap.Int("objects", len(objects)), zap.Uint64("resourceVersion", rv))
	return f.adoptedLocked(), nil
}

// adoptedLocked records that the cache contains a new state.
func (f *Feed) adoptedLocked() (epoch uint64) {
	f.writing.phase, f.writing.server = watching, f.loop.server
	f.listed.Store(0)
	f.writing.epoch++
	return f.writing.epoch
}

// describeAgain is called before the state is read. The feed stops if upstream now serves the resource
// in another way, by another version or from an aggregated API.
func (f *Feed) describeAgain(ctx context.Context) error {
	changed := f.askServer(ctx, versionWait, time.Now().Add(-versionShared))
	if changed && f.Encoding == object.Table {
		f.enter(renewing) // a relist does not compare cells
	}
	if !changed && (!f.cache.Stats().Ready || !f.cache.Resource().SelfDescribing) {
		return nil // it was just described, or cannot change
	}
	return f.sameDescription(ctx)
}

// checkServer compares the cache with upstream if another version of the apiserver answers than the
// one that wrote the cached state. It cuts the stream if the two differ. The stream goes on meanwhile,
// because a relist would skip events.
func (f *Feed) checkServer(ctx context.Context, epoch uint64, since time.Time, cut context.CancelCauseFunc) {
	for backoff := client.Reconnect; client.Sleep(ctx, max(checkAfter, backoff.Step())); {
		if !f.askServer(ctx, AskTimeout, since) {
			return
		}
		endTurn, err := f.Shared.Health.Turn(ctx)
		if err != nil {
			return
		}
		differs, err := true, errRewritten // the self-check does not compare cells
		if f.Encoding != object.Table {
			differs, err = f.SelfCheck(ctx)
		}
		endTurn()
		if apierrors.IsResourceExpired(err) { // no state that could be compared is left
			differs, err = true, errRewritten
		}
		switch {
		case err == nil:
			_ = f.Write(epoch, func() error { f.writing.server = f.loop.server; return nil }) // the epoch may be over
			return
		case differs:
			cut(err)
			return
		}
	}
}

// askServer reads the apiserver's version as of since or later. It reports whether another version
// wrote the cached state. After an error, the next stream asks again.
func (f *Feed) askServer(ctx context.Context, most time.Duration, since time.Time) (changed bool) {
	if f.Aggregated {
		return false // another server writes the objects
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	server, err := f.Shared.Client.ServerVersion(ctx, since)
	if err != nil {
		f.Log.Debug("upstream does not tell its version", zap.Error(err))
		return false
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	f.loop.server = server
	return f.writing.server != server
}

const (
	versionWait = time.Second // limits how long a state waits for the version
	// versionShared is how old the version may be. A newer state is compared again with the next
	// stream. checkAfter delays the question of a stream, so that streams share an answer.
	versionShared, checkAfter = time.Second, time.Second
)

// expired is the reason for a relist when upstream no longer has the history.
const expired = "expired"

// nextPhase decides the feed's next phase after a stream has ended. A nil err is a clean end. If it
// returns a reason, the feed reads the state again. Otherwise, the feed keeps its phase or stops.
func (f *Feed) nextPhase(ctx context.Context, err error) (next phase, reason string) {
	switch {
	case err == nil:
	case errors.Is(err, ErrWentBack):
		return renewing, "went-back"
	case errors.Is(err, errMissed):
		return correcting, "self-check"
	case errors.Is(err, errDiffers):
		return renewing, "self-check" // a relist does not show the difference, or no client is served yet
	case errors.Is(err, errRewritten):
		return renewing, "upgraded"
	case errors.Is(err, errCutShort) && f.Encoding == object.Table:
		return stopped, "" // the definition may have changed, but a relist does not compare cells
	case errors.Is(err, errCutShort):
		return syncing, "cut-short"
	case errors.Is(err, watchcache.ErrDiverged):
		return correcting, "diverged"
	case errors.Is(err, errOtherEpoch):
		return syncing, "diverged"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return syncing, expired
	case (apierrors.IsInvalid(err) || apierrors.IsNotAcceptable(err) && f.phase() != watching) && !f.loop.paged:
		f.loop.paged = true
		return syncing, "no-streaming"
	case errors.Is(err, errNoState):
		f.loop.pages = true
		return f.phase(), "no-state"
	case client.IsTooLarge(err):
		// Either upstream lags behind the cache, or etcd was restored to an earlier state. Only a
		// consistent read can distinguish these cases.
		if f.wentBack(ctx) {
			return renewing, "went-back"
		}
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err), apierrors.IsBadRequest(err),
		errors.Is(err, ErrServedAnew), errors.Is(err, discovery.ErrNotCacheable), errors.Is(err, discovery.ErrNotServed),
		errors.Is(err, object.ErrNoEncoding), errors.Is(err, object.ErrColumns), errors.Is(err, object.ErrOpaqueResourceVersion), errors.Is(err, object.ErrMalformed):
		return stopped, ""
	}
	return f.phase(), ""
}

func (f *Feed) wentBack(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	_, err := f.Probe(ctx)
	return errors.Is(err, ErrWentBack)
}
