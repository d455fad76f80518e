package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

var (
	// ErrWentBack says that upstream's revision is below the cache's revision, because etcd was
	// restored. All cached state must be dropped.
	ErrWentBack = errors.New("upstream's resourceVersion went back")
	// errSilent says that upstream has new revisions and the stream has shown nothing.
	errSilent = errors.New("watch stream fell silent")
	// errCutShort says that upstream ended a watch of a custom resource early,
	// as it does when the definition changes.
	errCutShort = errors.New("watch was cut short")
	// errOvertaken says that a listed state is older than events that a side watch has brought
	// since.
	errOvertaken = errors.New("listed state was overtaken")
	// errOtherEpoch says that a stream belongs to an epoch that was abandoned after the stream
	// opened.
	errOtherEpoch = errors.New("cache was started anew")
)

// Feed keeps the cache of one resource in step with upstream. Its run loop follows one watch. A
// reader that needs the most recent state can make the feed catch up faster (see catchup.go).
type Feed struct {
	*Upstream
	store.Key
	Owner      ledger.Owner // 0 if the ledger does not cover the resource
	Aggregated bool         // an aggregated API may serve the resource
	Log        *zap.Logger

	asked  time.Time // when a client asked for the resource; discovery must not be older
	limits watchcache.Limits
	paged  bool // upstream does not stream its state; used by Run alone

	started chan struct{} // closed when cache or err is set
	settled chan struct{} // closed when the cache may answer: after verification if it was saved or begins in the past
	done    chan struct{} // closed when Run has returned
	cache   *watchcache.Cache
	err     error // why there is no cache, or why it ended; valid after started or done is closed

	definition  discovery.Version // of a custom resource
	warnings    []string          // Warning headers that belong to every response
	lastUsed    atomic.Int64      // moment
	othersWrite atomic.Bool       // see OthersWrite

	signs
	tasks
	past  past     // where the feed could begin
	saved standing // used by Save alone

	writing struct {
		sync.Mutex // held during each write to the cache
		phase      phase
		epoch      uint64                  // counts the states that were read; each stream belongs to one
		cut        context.CancelCauseFunc // ends the main stream; nil if none is being followed
	}
}

// phase is what a feed does next.
type phase int

const (
	syncing  phase = iota // read the state; an existing cached state stays in use
	renewing              // read the state; it begins a new epoch
	watching              // follow the changes
	stopped               // nothing: the cache was abandoned
)

// New returns a feed for a client that asked at the time asked. Run starts it.
func New(ctx context.Context, u *Upstream, key store.Key, asked time.Time, limits watchcache.Limits) *Feed {
	gvr := key.GVR
	live, stop := context.WithCancel(ctx)
	f := &Feed{
		Upstream: u, Key: key, asked: asked, limits: limits, tasks: tasks{ctx: live, stop: stop},
		Log: u.Log.With(zap.String("group", gvr.Group), zap.String("version", gvr.Version), zap.String("resource", gvr.Resource),
			zap.Stringer("encoding", key.Encoding)),
		Aggregated: u.Options.Load().Resources[gvr.GroupResource()].Aggregated,
		started:    make(chan struct{}), settled: make(chan struct{}), done: make(chan struct{}),
	}
	if !f.Aggregated { // an aggregated API may show another resource's objects
		f.Owner = u.Owners.Of(gvr.GroupResource())
	}
	f.Use(0)
	return f
}

// Cache returns the feed's cache.
func (f *Feed) Cache() *watchcache.Cache { return f.cache }

// Warnings are the Warning headers that upstream sends with every answer about the resource.
func (f *Feed) Warnings() []string { return f.warnings }

// Definition returns the version of the CustomResourceDefinition. custom is false unless the
// resource is known to be a custom one.
func (f *Feed) Definition() (v discovery.Version, custom bool) {
	return f.definition, f.definition != discovery.Version{}
}

// Use records that a client uses the feed. If since is not 0, it is the resourceVersion that the
// client resumes from.
func (f *Feed) Use(since uint64) {
	f.lastUsed.Store(watchcache.Moment(time.Now()))
	f.past.Note(since)
}

// Idle is the time since the feed was last used.
func (f *Feed) Idle() time.Duration {
	if f.cache.Stats().Cursors > 0 {
		f.Use(0)
	}
	return watchcache.SinceMoment(f.lastUsed.Load())
}

// Started tells whether the feed has a cache and may be filling it.
func (f *Feed) Started() bool { return closed(f.started) && f.cache != nil }

// Settled tells whether the cache may answer as soon as it is filled.
func (f *Feed) Settled() bool { return closed(f.settled) && f.cache != nil }

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Start waits until the feed has started. If it fails to start, Start returns the reason.
func (f *Feed) Start(ctx context.Context) error {
	select {
	case <-f.started:
	case <-ctx.Done():
		return fmt.Errorf("%w: start %s: %w", watchcache.ErrNotReady, f, ctx.Err())
	}
	if f.cache == nil {
		return f.err
	}
	return nil
}

// Ready waits until the cache is filled and may answer. If it returns an error, upstream has to
// answer the request.
func (f *Feed) Ready(ctx context.Context) error {
	err := f.Start(ctx)
	if err != nil {
		return err
	}
	select {
	case <-f.settled:
		_, err = f.cache.Snapshot()
		if _, lost := f.Lost(); err != nil && !lost {
			_, err = f.cache.WaitFresh(ctx, 0)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err = cmp.Or(err, f.ctx.Err()); err != nil {
		return fmt.Errorf("%w: %s: %w", watchcache.ErrNotReady, f, err)
	}
	return nil
}

// Run returns nil after Stop, or an error that says why the resource turned out not to be
// cacheable. It calls started when Started has become true, before it reads a state and before the
// cache can answer.
func (f *Feed) Run(started func()) error {
	defer close(f.done)
	defer f.stop()
	ctx := f.ctx
	cache, at, err := f.describe(ctx)
	if err != nil {
		f.err = err
		close(f.settled)
		close(f.started)
		return f.ended()
	}
	f.cache = cache
	restored := f.restore(at)
	close(f.started)
	started()
	if restored {
		f.Go(func(ctx context.Context) { f.verifyRestored(ctx, at) })
	} else {
		f.beginInThePast(ctx, at)
	}
	f.err = f.follow(ctx)
	err = f.ended()
	f.endTasks()
	f.Abandon()
	return err
}

// ended returns the reason why the feed has ended, or nil after Stop.
func (f *Feed) ended() error {
	if f.ctx.Err() != nil {
		return nil
	}
	return f.err
}

// Stop ends the feed and its cache, and waits for the end.
func (f *Feed) Stop() {
	f.stop()
	<-f.done
}

// Write applies a change unless the cache has moved on from the given epoch.
func (f *Feed) Write(epoch uint64, change func() error) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.phase == stopped || f.writing.epoch != epoch {
		return errOtherEpoch
	}
	return change()
}

// Abandon ends the cache immediately. The feed ends as soon as it notices.
func (f *Feed) Abandon() {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.writing.phase = stopped
	f.writing.epoch++
	f.cache.End()
	f.stop()
}

// enter begins a phase. A stopped feed stays stopped. A renewing feed does not fall back to
// syncing: it stays renewing until it has read a state.
func (f *Feed) enter(p phase) {
	f.writing.Lock()
	defer f.writing.Unlock()
	if was := f.writing.phase; was != stopped && (was != renewing || p != syncing) {
		f.writing.phase = p
	}
}

func (f *Feed) phase() phase {
	f.writing.Lock()
	defer f.writing.Unlock()
	return f.writing.phase
}

// interruptible allows Interrupt to end the main stream by calling cut. With nil, Interrupt has no
// effect.
func (f *Feed) interruptible(cut context.CancelCauseFunc) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.writing.cut = cut
}

// Interrupt ends the main stream and passes the reason to the run loop. It returns false if no
// stream is being followed.
func (f *Feed) Interrupt(reason error) bool {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.cut == nil {
		return false
	}
	f.writing.cut(reason)
	return true
}

// standing is a position in a cache's log.
type standing struct{ rv, epoch uint64 }

// Standing returns the log's resourceVersion and epoch.
func (f *Feed) Standing() (rv, epoch uint64) {
	f.writing.Lock()
	defer f.writing.Unlock()
	return f.cache.Stats().ResourceVersion, f.writing.epoch
}

// skewMost is the largest difference between two clocks with which a feed shows ages.
const skewMost = 5 * time.Second

// describe finds out in what form upstream serves the resource, and upstream's resourceVersion.
func (f *Feed) describe(ctx context.Context) (cache *watchcache.Cache, at uint64, err error) {
	found, err := f.Names.Describe(ctx, f.GVR, f.asked)
	if err != nil {
		return nil, 0, err
	}
	custom := false
	if !f.Aggregated {
		if custom, err = f.Names.CheckLocal(ctx, f.GVR); err != nil {
			return nil, 0, err
		}
	}
	r := object.Resource{
		GVR: f.GVR, Kind: found.Kind, Namespaced: found.Namespaced,
		Fields: client.OnTheWire(f.GVR, client.BuiltinFields(f.GVR), f.Encoding), NoNamespaceField: client.NoNamespaceField(f.GVR), NoWatchCache: client.NoWatchCache(f.GVR),
		Encoding: f.Encoding,
	}
	p, err := f.Client.Probe(ctx, "probe", &r)
	if err == nil && f.Encoding == object.Table && p.Ahead.Abs() > skewMost {
		err = fmt.Errorf("%w: ages would be wrong, because this clock differs from upstream's by %s", discovery.ErrNotCacheable, p.Ahead.Abs())
	}
	if err == nil && f.Encoding == object.Table { // a Table does not show whether the resource is a custom one
		r.Columns.Definitions, r.Columns.KeepsMetadata, r.Fields = p.Columns, client.RowsDiffer(f.GVR), nil
		objects := r
		objects.Encoding = object.JSON
		p, err = f.Client.Probe(ctx, "probe", &objects)
	}
	if err != nil {
		return nil, 0, err
	}
	if custom && !p.SelfDescribing {
		return nil, 0, fmt.Errorf("%w: %s is defined as a custom resource and is none", discovery.ErrNotCacheable, f.GVR)
	}
	r.ListKind, r.SelfDescribing = p.ListKind, p.SelfDescribing
	f.warnings = p.Warnings
	f.alive()
	if p.SelfDescribing {
		// Define is called before the first object is read, so that no object is older than the
		// definition.
		d, err := discovery.Define(ctx, f.Client, f.GVR)
		if err != nil {
			return nil, 0, err
		}
		f.definition = d.Version
		r.Columns.Paths, r.Columns.Defined = d.Columns, d.Version != (discovery.Version{})
		if f.Encoding != object.Table {
			r.Fields = append(r.Fields, client.CustomFields(d.Selectable)...)
		}
	}
	return watchcache.New(r, f.limits), p.RV, nil
}

// String names the feed.
func (f *Feed) String() string { return fmt.Sprintf("%s feed of %s", f.Encoding, f.GVR) }

// tasks are a feed's goroutines other than its run loop.
type tasks struct {
	ctx     context.Context //nolint:containedctx // the life of the feed
	stop    context.CancelFunc
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		over bool
	}
}

// Go runs a task. Its ctx ends with the feed, and the feed waits for the task. It returns false if
// the feed has ended.
func (t *tasks) Go(task func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.over {
		t.running.Go(func() { task(t.ctx) })
	}
	return !t.mu.over
}

// endTasks prevents further tasks and waits for running ones.
func (t *tasks) endTasks() {
	t.mu.Lock()
	t.mu.over = true
	t.mu.Unlock()
	t.stop()
	t.running.Wait()
}
