package feed

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

type loop struct {
	limits    watchcache.Limits
	beginning *beginning
	paged     bool // upstream does not stream the initial state
	listed    bool // the state was just read in pages
	pages     bool // the next state is read in pages, because a stream did not bring it
	patient   bool // the next stream may be silent: pages took longer than upstream keeps history
}

// Run runs the feed. It returns nil after Stop, or the reason why the resource is not cacheable. It
// calls started when there is a cache, before a state is read and the cache serves clients.
func (f *Feed) Run(started func()) error {
	defer close(f.Progress.done)
	defer f.tasks.Stop()
	ctx := f.tasks.Context
	// All later responses are at least as new as this version.
	if f.SelfCheck.askVersion(ctx, versionWait, time.Now().Add(-versionShared)) {
		f.Writer.sameState(0)
		f.Signs.Touch()
	}
	described, at, err := f.describe(ctx, f.Usage.asked, &f.Signs.last)
	if err != nil {
		f.Progress.err = err
		close(f.Progress.serves)
		close(f.Progress.started)
		return f.unlessStopped(err)
	}
	f.Signs.Alive()
	f.Described, f.Writer.cache = described, watchcache.New(described.Resource, f.loop.limits)
	close(f.Progress.started)
	started()
	if f.loop.beginning.inThePast(ctx, f.Usage, at) {
		f.Go(func(ctx context.Context) { f.loop.beginning.reachPresent(ctx, at) })
	} else {
		close(f.Progress.serves)
	}
	err = f.unlessStopped(f.follow(ctx))
	f.tasks.End()
	f.Abandon()
	return err
}

func (f *Feed) unlessStopped(err error) error {
	if f.tasks.Context.Err() != nil {
		return nil
	}
	return err
}

// WatchLife is the shortest timeout that kube-apiserver gives a watch by default.
const WatchLife = 30 * time.Minute

func (f *Feed) follow(ctx context.Context) error {
	for again := client.NewRetry(f.Shared.Health); ; {
		endTurn, err := f.Progress.turn(ctx)
		if err != nil {
			return err
		}
		began, now, listed := time.Now(), f.Writer.phase(), f.loop.listed
		paged := now != watching && (f.loop.paged || f.loop.pages)
		if now == watching {
			err = f.watch(ctx, endTurn)
		} else {
			err = f.sync(ctx, paged, endTurn)
			f.loop.pages, f.loop.patient = false, false
		}
		endTurn()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if f.loop.listed = paged && err == nil; f.loop.listed {
			continue // the state came from a list; no stream was open yet
		}
		if f.Writer.cache.Stats().Ready { // upstream counts as lost until the next stream succeeds
			f.Signs.Failed(err, errors.Is(err, errSilent))
		}
		took := time.Since(began)
		next, reason := f.nextPhase(ctx, err)
		refused := client.Answered(err) || errors.Is(err, discovery.ErrNotServed)
		returning := refused && f.Shared.Health.IsReturning()
		if next == stopped && returning && f.Writer.cache.Stats().Ready {
			next, reason = f.Writer.phase(), ""
		}
		switch {
		case next == stopped:
			return err
		case reason == expired && f.loop.beginning.elsewhere(ctx):
			continue
		case reason != "":
			f.Log.Info("relisting", zap.String("reason", reason), zap.Error(err))
			f.Shared.Metrics.Relists.WithLabelValues(
				f.GVR.Group, f.GVR.Version, f.GVR.Resource, reason).Inc()
			f.Writer.enter(next)
			f.loop.patient = listed && reason == expired && !f.Aggregated
		case err != nil:
			f.Signs.Failed(err, errors.Is(err, errSilent))
			f.Log.Warn("upstream watch broke", zap.Error(err))
		}
		if !again.After(ctx, took, err) {
			return ctx.Err()
		}
	}
}

// sync reads the whole state. If the state came from a stream, sync follows that stream.
func (f *Feed) sync(ctx context.Context, paged bool, endTurn func()) error {
	if err := f.describeAgain(ctx); err != nil {
		return err
	}
	notOlderThan := uint64(0)
	if s, err := f.Writer.cache.Snapshot(); err == nil && f.Writer.phase() != renewing {
		notOlderThan = s.ResourceVersion()
	}
	if paged {
		changes, rv, err := f.Shared.Client.List(ctx, f.Writer.cache, notOlderThan, "NotOlderThan")
		if err == nil {
			_, err = f.Writer.adopt(changes, rv)
		}
		return err
	}
	query := url.Values{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}}
	if notOlderThan > 0 {
		query.Set("resourceVersion", strconv.FormatUint(notOlderThan, 10))
	}
	return f.stream(ctx, query, 0, endTurn)
}

func (f *Feed) watch(ctx context.Context, endTurn func()) error {
	if _, lost := f.Signs.Lost(); lost && wentBack(ctx, f.Shared.Client, f.Writer.cache) {
		// A restored etcd reuses resourceVersions for other content. If it has not reached the
		// cache's resourceVersion yet, kube-apiserver accepts the watch and skips all events up to
		// that resourceVersion. So the feed probes first. If etcd is already past it, later changes
		// that do not fit the cache, or a self-check, detect the restore.
		return ErrWentBack
	}
	rv, epoch := f.Writer.Position()
	query := url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}}
	return f.stream(ctx, query, epoch, endTurn)
}

// stream opens a watch and reads it. If epoch is 0, it first reads the state that begins an epoch.
func (f *Feed) stream(ctx context.Context, query url.Values, epoch uint64, endTurn func()) error {
	wanted := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.Signs.Touch()
	dog := watchdog{f.Shared.Client, f.Writer, f.Signs}
	var guards sync.WaitGroup
	guards.Go(func() { dog.guard(ctx, cancel) })
	defer guards.Wait()
	defer cancel(nil)

	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	opened := time.Now()
	resource, accept := f.Writer.cache.Resource(), client.AcceptOf(f.Encoding)
	resp, err := f.Shared.Client.GetCollection(ctx, accept, "watch", resource, query)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or no longer needed
	f.Signs.Alive()
	if err := client.CheckEncoding(resp, f.Encoding); err != nil {
		return err
	}
	f.Main.opened.Store(watchcache.Moment(time.Now()))
	defer f.Main.opened.Store(0)
	s := client.NewStream(resp.Body, resource)
	r := &streamReader{f.Collection, f.Writer, f.Main, epoch}
	if epoch == 0 {
		if !f.Aggregated {
			f.Shared.Client.Compresses.Store(resp.Uncompressed)
		}
		filling, filled := context.WithCancel(ctx)
		if !f.loop.patient {
			guards.Go(func() { dog.guardFill(filling, cancel) })
		}
		err = r.readState(s, f.Signs)
		if filled(); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	} else if !f.loop.listed { // otherwise two versions in turn would cause one list after another
		since := time.Now()
		guards.Go(func() { f.SelfCheck.checkVersion(ctx, epoch, since, cancel) })
	}
	endTurn()
	// The stream is not interruptible before. If a freshness run detects an error before, the state
	// that is being read corrects it.
	f.Main.interruptible(cancel)
	defer f.Main.interruptible(nil)
	err = r.readEvents(ctx, s, f.Signs)
	if wanted.Err() == nil && (err != nil || time.Since(opened) < WatchLife) {
		f.Shared.Ledger.Forget() // the next stream may come from a restored etcd
	}
	if err == nil && resource.SelfDescribing && time.Since(opened) < WatchLife {
		err = errCutShort
	}
	return cmp.Or(context.Cause(ctx), err)
}

type streamReader struct {
	*Collection
	writer *Writer
	main   *MainStream
	epoch  uint64 // of the changes
}

// batchMax is the number of events that are published even if more have arrived.
const batchMax = 256

// readState reads a stream's initial state (sendInitialEvents), up to the bookmark that ends it.
func (r *streamReader) readState(s client.Stream, signs *Signs) error {
	var changes []watchcache.Change
	for {
		e, err := s.Next()
		if err != nil {
			return client.Ended(err, true)
		}
		signs.Alive()
		switch e.Kind {
		case "BOOKMARK":
			rv, err := r.writer.bookmark(e)
			if err != nil {
				return err
			}
			if r.writer.cache.Resource().IsInitialEventsEnd(e.Object) {
				r.epoch, err = r.writer.adopt(changes, rv)
				return err
			}
		case "ERROR":
			return client.EventError(e, r.Encoding)
		default:
			change, err := parseChange(r.writer.cache.Resource(), e)
			if err != nil {
				return err
			}
			change.Object = r.writer.cache.Known(change.Object) // so a relist needs no second copy
			changes = append(changes, change)
		}
	}
}

// readEvents applies a stream's events until the stream ends: with nil if it ends cleanly.
func (r *streamReader) readEvents(ctx context.Context, s client.Stream, signs *Signs) error {
	at, _ := r.writer.Position()
	highest := Highest(at)
	var used []uint64 // revisions for the ledger
	events := NewBatch(ctx, r, r.writer.cache.Resource().NoWatchCache)
	defer events.Close()
	publish := func() error {
		err := events.Publish()
		r.Shared.Uses(r.Owner, used...)
		used = used[:0]
		return err
	}
	for {
		e, err := s.Next()
		if err != nil {
			return errors.Join(publish(), client.Ended(err, false))
		}
		signs.Alive()
		waiting := 0
		switch e.Kind {
		case "BOOKMARK":
			rv, err := r.writer.bookmark(e)
			if err != nil {
				return errors.Join(publish(), err)
			}
			events.Reached(rv)
			highest.Reached(rv)
			if err := publish(); err != nil {
				return err
			}
			if err := r.writer.Advance(r.epoch, rv); err != nil {
				return err
			}
		case "ERROR":
			return errors.Join(publish(), client.EventError(e, r.Encoding))
		default:
			change, err := parseChange(r.writer.cache.Resource(), e)
			if err != nil {
				return errors.Join(publish(), err)
			}
			waiting = events.Add(change)
			if rv := change.Object.ResourceVersion(); highest.Reached(rv) {
				used = append(used, rv)
			}
		}
		if waiting >= batchMax || !s.Buffered() {
			if err := publish(); err != nil {
				return err
			}
		}
	}
}

func parseChange(r *object.Resource, e client.Event) (watchcache.Change, error) {
	switch e.Kind {
	case "ADDED", "MODIFIED", "DELETED":
	default:
		err := object.Malformed("watch event of type %q", e.Kind)
		return watchcache.Change{}, err
	}
	o, err := r.ParseObject(client.AsListed(r, e.Object))
	return watchcache.Change{Deleted: e.Kind == "DELETED", Object: o}, err
}

// Apply implements Publisher.
func (r *streamReader) Apply(changes []watchcache.Change, received time.Time) error {
	return r.writer.Write(r.epoch, func() error {
		return r.writer.cache.Writer().Apply(changes, received)
	})
}

// Interrupt implements Publisher.
func (r *streamReader) Interrupt(reason error) { r.main.Interrupt(reason) }

// Whole implements Publisher. The cache has the state before the revision. Upstream counts the
// objects that are left at the revision, so its response is small. If the revision has deleted the
// whole state, it has no further deletions.
func (r *streamReader) Whole(ctx context.Context, rv uint64, deletions int) bool {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	cache := r.writer.cache
	before, err := cache.SnapshotAt(cache.Stats().ResourceVersion)
	if err != nil || before.Len() <= deletions {
		return err == nil
	}
	left, err := r.Shared.Client.CountAt(ctx, cache.Resource(), rv)
	return err == nil && left == before.Len()-deletions
}

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
		return renewing, "self-check" // a relist may not show it, or no client is served yet
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
	case !f.loop.paged && (apierrors.IsInvalid(err) ||
		apierrors.IsNotAcceptable(err) && f.Writer.phase() != watching):
		f.loop.paged = true
		return syncing, "no-streaming"
	case errors.Is(err, errNoState):
		f.loop.pages = true
		return f.Writer.phase(), "no-state"
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		// Either upstream lags behind the cache, or etcd was restored to an earlier state. Only a
		// consistent read can distinguish these cases.
		if wentBack(ctx, f.Shared.Client, f.Writer.cache) {
			return renewing, "went-back"
		}
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err),
		apierrors.IsBadRequest(err), errors.Is(err, ErrServedAnew),
		errors.Is(err, discovery.ErrNotCacheable), errors.Is(err, discovery.ErrNotServed),
		errors.Is(err, object.ErrNoEncoding), errors.Is(err, object.ErrColumns),
		errors.Is(err, object.ErrOpaqueResourceVersion), errors.Is(err, object.ErrMalformed):
		return stopped, ""
	}
	return f.Writer.phase(), ""
}

// describeAgain is called before the state is read. The feed stops if upstream now serves the
// resource in another way, by another version or from an aggregated API.
func (f *Feed) describeAgain(ctx context.Context) error {
	changed := f.SelfCheck.askVersion(ctx, versionWait, time.Now().Add(-versionShared))
	if changed && f.Encoding == object.Table {
		f.Writer.enter(renewing) // a relist does not compare cells
	}
	if !changed && (!f.Writer.cache.Stats().Ready || !f.Writer.cache.Resource().SelfDescribing) {
		return nil // it was just described, or cannot change
	}
	return f.SelfCheck.sameDescription(ctx)
}

func wentBack(ctx context.Context, c *client.Client, cache *watchcache.Cache) bool {
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	_, err := Probe(ctx, c, cache)
	return errors.Is(err, ErrWentBack)
}

// MainStream is the watch that a feed follows, as others see it: whether it is open, and how to end
// it. A side watch is not the main stream.
type MainStream struct {
	opened atomic.Int64 // moment when upstream accepted the watch; 0 without a watch
	mu     struct {
		sync.Mutex
		cut context.CancelCauseFunc // nil until the stream has brought the state
	}
}

// Interrupt ends the stream, and the loop gets the reason. False means that there is no stream.
func (s *MainStream) Interrupt(reason error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.cut == nil {
		return false
	}
	s.mu.cut(reason)
	return true
}

func (s *MainStream) interruptible(cut context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cut = cut
}

func (s *MainStream) openFor(d time.Duration) bool {
	opened := s.opened.Load()
	return opened != 0 && watchcache.SinceMoment(opened) >= d
}
