package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

var (
	// errWentBack says that upstream's revision is below the cache's: etcd was
	// restored. No cached state may be kept.
	errWentBack = errors.New("upstream's resourceVersion went back")
	// errSilent says that upstream moved on and the stream did not.
	errSilent = errors.New("watch stream fell silent")
	// errCutShort says that upstream ended a watch of a custom resource early,
	// as it does when the definition changes.
	errCutShort = errors.New("watch was cut short")
	// errOvertaken says that a listed state is older than what a side watch has brought since.
	errOvertaken = errors.New("listed state was overtaken")
	// errOtherEpoch says that a stream's events belong to a state that was
	// abandoned after the stream opened.
	errOtherEpoch = errors.New("cache was started anew")
)

// Feed keeps the cache of one resource in step with upstream. Its run loop follows one watch;
// readers of the most recent state make it catch up sooner (see [Feed.Fresh]).
type Feed struct {
	gvr      schema.GroupVersionResource
	encoding object.Encoding
	options  atomic.Pointer[ResourceOptions]
	client   *client.Client
	asked    time.Time // when a client asked for it: discovery must not be older
	names    *discovery.Discovery
	health   *servers.Health
	probes   *rate.Limiter // the probe budget of all feeds together
	early    *rate.Limiter // bounds reads that go to upstream after a long wait
	keeper   *keeper
	owner    ledger.Owner // 0 if the ledger does not cover it
	limits   watchcache.Limits
	log      *zap.Logger
	metrics  *Metrics

	store   *Store        // nil if caches are not saved
	saved   standing      // known to Save alone
	settled chan struct{} // closed when the cache may answer, after verification
	defined func(*Feed)   // called once if the resource is a custom one
	started chan struct{} // closed when cache or err is set
	done    chan struct{} // closed when run has returned
	stop    context.CancelFunc
	cache   *watchcache.Cache
	err     error // why there is no cache, or why it ended; read after started or done

	definition discovery.Version // of a custom resource
	warnings   []string          // Warning headers that belong to every response
	lost       atomic.Int64      // moment at which the stream was lost; 0 while it is there
	refused    atomic.Bool       // the stream was lost because upstream refused it
	unanswered atomic.Int64      // moment of the first unanswered probe, 0 if the last was answered
	lastSign   atomic.Int64      // moment of upstream's last sign of life
	lastUsed   atomic.Int64      // moment
	past       resumePoints      // where it could begin

	writing struct {
		sync.Mutex                         // held to write to the cache
		over       bool                    // the cache was abandoned
		epoch      uint64                  // counts the states read; a stream has one
		cut        context.CancelCauseFunc // ends the main stream; nil unless one is being followed
	}
	fresh freshness
	roads roads

	// Known to run alone.
	synced   bool // the state was read; follow it
	paged    bool // upstream does not stream its state
	newEpoch bool // the next sync begins a new epoch
}

// run lives until ctx ends or the resource turns out not to be cacheable.
func (f *Feed) run(ctx context.Context) {
	defer close(f.done)
	cache, at, err := f.describe(ctx)
	if err != nil {
		f.err = err
		close(f.settled)
		close(f.started)
		return
	}
	f.cache = cache
	f.fresh.init(ctx)
	restored := f.restore(at)
	close(f.started)
	if f.custom() {
		f.defined(f)
	}
	if !restored {
		f.beginInThePast(ctx, at)
	}
	f.err = f.follow(ctx)
	f.fresh.end()
	f.abandon(func() {})
}

// write applies a change if its epoch is still the cache's.
func (f *Feed) write(epoch uint64, change func() error) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.over || f.writing.epoch != epoch {
		return errOtherEpoch
	}
	return change()
}

// abandon ends the cache at once, and the feed as soon as it notices.
func (f *Feed) abandon(stop context.CancelFunc) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.writing.over = true
	f.writing.epoch++
	f.cache.End()
	stop()
}

// interruptible lets interrupt end the main stream; nil stops that.
func (f *Feed) interruptible(cut context.CancelCauseFunc) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.writing.cut = cut
}

// interrupt ends the main stream, if it follows, with a reason for the run loop.
func (f *Feed) interrupt(reason error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.cut != nil {
		f.writing.cut(reason)
	}
}

// standing is the log's resourceVersion and epoch.
func (f *Feed) standing() (rv, epoch uint64) {
	f.writing.Lock()
	defer f.writing.Unlock()
	return f.cache.Stats().ResourceVersion, f.writing.epoch
}

// describe finds out how upstream serves the resource, and upstream's resourceVersion.
func (f *Feed) describe(ctx context.Context) (cache *watchcache.Cache, at uint64, err error) {
	found, err := f.names.Describe(ctx, f.gvr, f.asked)
	if err != nil {
		return nil, 0, err
	}
	custom := false
	if !f.options.Load().Aggregated {
		if custom, err = f.names.CheckLocal(ctx, f.gvr); err != nil {
			return nil, 0, err
		}
	}
	r := object.Resource{
		GVR: f.gvr, Kind: found.Kind, Namespaced: found.Namespaced,
		Fields: client.OnTheWire(f.gvr, client.BuiltinFields(f.gvr), f.encoding), NoNamespaceField: client.NoNamespaceField(f.gvr), NoWatchCache: client.NoWatchCache(f.gvr),
		Encoding: f.encoding,
	}
	p, err := f.client.Probe(ctx, &r)
	if err != nil {
		return nil, 0, err
	}
	if custom && !p.SelfDescribing {
		return nil, 0, fmt.Errorf("%w: %s is defined as a custom resource and is none", discovery.ErrNotCacheable, f.gvr)
	}
	r.ListKind, r.SelfDescribing = p.ListKind, p.SelfDescribing
	f.warnings = p.Warnings
	f.alive()
	if p.SelfDescribing {
		// Read before the first object, so that no object is older than the definition.
		d, err := discovery.Define(ctx, f.client, f.gvr)
		if err != nil {
			return nil, 0, err
		}
		f.definition = d.Version
		r.Fields = append(r.Fields, client.CustomFields(d.Selectable)...)
	}
	return watchcache.New(r, f.limits), p.RV, nil
}

// custom tells whether the resource is a custom one with a known definition.
func (f *Feed) custom() bool { return f.definition != discovery.Version{} }

// watchLife is the shortest timeout that kube-apiserver itself gives a watch.
const watchLife = 30 * time.Minute

// follow syncs and watches until ctx ends or there is nothing to follow.
func (f *Feed) follow(ctx context.Context) error {
	for again := servers.NewRetry(f.health); ; {
		end, err := f.health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return err
		}
		began := time.Now()
		paged := !f.synced && f.paged
		if f.synced {
			err = f.watch(ctx, end)
		} else {
			err = f.sync(ctx, end)
		}
		end()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if paged && err == nil {
			continue // no stream was open yet
		}
		if f.cache.Stats().Ready { // refused until the next stream succeeds
			f.failed(err)
		}
		took := time.Since(began)
		action, reason := f.verdict(ctx, err)
		if action == servers.GiveUp && f.cache.Stats().Ready && client.Answered(err) && f.health.IsReturning() {
			action = servers.Resume
		}
		switch action {
		case servers.GiveUp:
			return err
		case servers.Relist:
			if reason == expired && f.beginElsewhere(ctx) {
				continue
			}
			f.log.Info("relisting", zap.String("reason", reason), zap.Error(err))
			f.metrics.relists.WithLabelValues(f.gvr.Group, f.gvr.Version, f.gvr.Resource, reason).Inc()
			f.synced = false
		case servers.Resume:
			if err != nil {
				f.failed(err)
				f.log.Warn("upstream watch broke", zap.Error(err))
			}
		}
		if !again.After(ctx, took, err, action) {
			return ctx.Err()
		}
	}
}

// urgency ranks the feed by its clients.
func (f *Feed) urgency() servers.Urgency {
	return servers.Urgency{Watched: f.cache.Stats().Cursors > 0, Used: f.lastUsed.Load()}
}

// sync reads the whole state. If a stream brought it, sync goes on with that watch. It calls read
// when it has the state.
func (f *Feed) sync(ctx context.Context, read func()) error {
	notOlderThan := uint64(0)
	if s, err := f.cache.Snapshot(); err == nil && !f.newEpoch {
		notOlderThan = s.ResourceVersion()
	}
	if f.paged {
		changes, rv, err := f.client.List(ctx, f.cache.Resource(), notOlderThan)
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
		// An etcd restored to an earlier state reuses resourceVersions with other content.
		// kube-apiserver accepts a watch from a future one and stays silent until it gets there:
		// the watch would miss everything before. So the feed probes first. If upstream has
		// already overtaken the cache, changes that do not fit, or the self-check, must show it.
		return errWentBack
	}
	rv, epoch := f.standing()
	return f.stream(ctx, url.Values{"resourceVersion": {strconv.FormatUint(rv, 10)}}, epoch, opened)
}

// stream opens a watch and consumes it to its end. With an epoch it continues that one;
// epoch 0 first reads the state that begins an epoch. It calls followed when it has the state and
// follows the changes.
func (f *Feed) stream(ctx context.Context, query url.Values, epoch uint64, followed func()) error {
	wanted := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.touch()
	dog := make(chan struct{})
	go func() {
		defer close(dog)
		f.guard(ctx, cancel)
	}()
	defer func() { <-dog }()
	defer cancel(nil)

	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	opened := time.Now()
	resp, err := f.client.GetAs(ctx, client.MimeOf(f.encoding), "watch", f.gvr, client.ResourcePath(f.gvr, ""), query)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or does not matter
	f.alive()
	if err := client.CheckEncoding(resp, f.encoding); err != nil {
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
	// Not before: a state that is being read mends what a freshness run finds wrong.
	f.interruptible(cancel)
	defer f.interruptible(nil)
	err = f.consume(s, epoch, f.alive)
	if wanted.Err() == nil && (err != nil || time.Since(opened) < watchLife) {
		f.keeper.ledger.Forget() // the next stream may be of a restored etcd
	}
	if err == nil && f.cache.Resource().SelfDescribing && time.Since(opened) < watchLife {
		err = errCutShort
	}
	return causeOf(ctx, err)
}

// causeOf prefers the watchdog's reason for cutting a stream.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// adopt puts a listed state into the cache: as the difference to the cached state,
// or as a new epoch. It returns the epoch for the changes that follow.
func (f *Feed) adopt(changes []watchcache.Change, rv uint64) (epoch uint64, err error) {
	objects := compact(changes)
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.over {
		return 0, errOtherEpoch
	}
	if stats := f.cache.Stats(); stats.Ready && !f.newEpoch {
		if rv < stats.ResourceVersion {
			return 0, fmt.Errorf("%w: %d, cached at %d", errOvertaken, rv, stats.ResourceVersion)
		}
		err := f.cache.Replace(objects, rv, time.Now())
		if err == nil {
			f.synced = true
			f.writing.epoch++
			return f.writing.epoch, nil
		}
		f.log.Warn("relist does not continue the cached state; ending its watches", zap.Error(err))
	}
	if f.store != nil {
		_ = f.store.remove(f.key()) // a restart must not go on from it
	}
	f.cache.Reset(objects, rv)
	f.synced, f.newEpoch = true, false
	f.writing.epoch++
	f.log.Info("synced", zap.Int("objects", len(objects)), zap.Uint64("resourceVersion", rv))
	return f.writing.epoch, nil
}

// alive notes a sign of life from upstream.
func (f *Feed) alive() {
	f.touch()
	f.lost.Store(0)
	f.unanswered.Store(0)
}

func (f *Feed) touch() { f.lastSign.Store(watchcache.Moment(time.Now())) }

// String names the feed.
func (f *Feed) String() string { return fmt.Sprintf("%s feed of %s", f.encoding, f.gvr) }
