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
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

var (
	// ErrWentBack means that upstream's revision is below the cache's revision, because etcd was
	// restored. All cached state must be dropped.
	ErrWentBack = errors.New("upstream's resourceVersion went back")
	// errSilent means that upstream has new revisions, but the stream has delivered nothing.
	errSilent = errors.New("watch stream fell silent")
	// errNoState means that a stream fell silent before its state was complete.
	errNoState = errors.New("watch stream does not complete the state")
	// errCutShort means that upstream ended a watch of a custom resource early, as after a change
	// of its definition.
	errCutShort = errors.New("watch was cut short")
	// errOvertaken means that a side watch has brought newer events than a listed state.
	errOvertaken = errors.New("listed state was overtaken")
	// errOtherEpoch means that the epoch of a stream was abandoned after the stream opened.
	errOtherEpoch = errors.New("cache was started anew")
)

// Feed keeps the cache of one resource up to date with upstream. Its run loop follows one watch. A
// reader that needs the most recent state can make the feed catch up faster (see catchup.go).
type Feed struct {
	Shared *Shared
	Key
	Owner      Owner // zero if the ledger does not cover the resource
	Aggregated bool  // an aggregated API may serve the resource
	Log        *zap.Logger

	loop      loop
	life      life
	cache     *watchcache.Cache
	described discovery.Description
	lastUsed  atomic.Int64  // moment
	listed    atomic.Uint64 // the resourceVersion of the newest object in the last list; 0 in a new state

	Signs
	tasks  *tasks       // other than the run loop
	resume resumePoints // revisions where the feed may begin

	writing struct {
		sync.Mutex // held during each write to the cache
		phase      phase
		server     string                  // the version of the apiserver that wrote the state; "" if unknown
		epoch      uint64                  // counts the states read from upstream; each stream belongs to one epoch
		cut        context.CancelCauseFunc // ends the main stream; nil without a followed stream
	}
}

// loop belongs to Run.
type loop struct {
	asked  time.Time // when a client asked for the resource; discovery must not be older
	limits watchcache.Limits
	paged  bool   // upstream does not stream the initial state
	listed bool   // the state was just read in pages
	pages  bool   // the next state is read in pages, because a stream did not bring it
	server string // the apiserver's version when Run asked last
}

// life tells others how far Run is.
type life struct {
	queued  atomic.Bool   // Run waits for its turn
	started chan struct{} // closed when the cache or err is set
	// serves is closed when the cache may serve clients. A past state must reach the present first.
	serves chan struct{}
	done   chan struct{} // closed when Run has returned
	// err is why the cache is missing or has ended. It is valid after started or done is closed.
	err error
}

type phase int

const (
	syncing    phase = iota // read the state; the cached state, if any, stays in use
	correcting              // the same, and drop the log, because the cache has missed a change
	renewing                // read the state and begin a new epoch
	watching                // follow the changes
	stopped                 // nothing: the cache was abandoned
)

// New returns a feed for a client that sent its request at asked. Run starts the feed.
func New(ctx context.Context, u *Shared, key Key, asked time.Time, limits watchcache.Limits) *Feed {
	gvr := key.GVR
	f := &Feed{
		Shared: u, Key: key, loop: loop{asked: asked, limits: limits}, tasks: newTasks(ctx),
		Log:        u.Log.With(zap.Inline(key)),
		Aggregated: u.Options.Load().Resources[gvr.GroupResource()].Aggregated,
		life:       life{started: make(chan struct{}), serves: make(chan struct{}), done: make(chan struct{})},
	}
	// An aggregated API may show another resource's objects. A scope shows some of the writes only.
	if !f.Aggregated && key.Scope.Whole() {
		f.Owner = OwnerOf(gvr.GroupResource())
	}
	f.Use(0)
	return f
}

// Cache returns the feed's cache.
func (f *Feed) Cache() *watchcache.Cache { return f.cache }

// CompressesWatches reports whether upstream compresses watches that begin with the state.
func (f *Feed) CompressesWatches() bool { return !f.Aggregated && f.Shared.Client.Compresses.Load() }

// Warnings are the Warning headers in every response from upstream about the resource.
func (f *Feed) Warnings() []string { return f.described.Warnings }

// Definition returns the version of the CustomResourceDefinition. custom is false unless the
// resource is known to be a custom resource.
func (f *Feed) Definition() (v discovery.Version, custom bool) {
	return f.described.Definition, f.described.Definition != discovery.Version{}
}

// Use records that a client uses the feed. since is the resourceVersion that it resumes from, or 0.
func (f *Feed) Use(since uint64) {
	f.lastUsed.Store(watchcache.Moment(time.Now()))
	f.resume.note(since)
}

// Idle is the time since the feed was last used.
func (f *Feed) Idle() time.Duration {
	if f.cache.Stats().Cursors > 0 {
		f.Use(0)
	}
	return watchcache.SinceMoment(f.lastUsed.Load())
}

// Age returns the time since a client asked for the feed.
func (f *Feed) Age() time.Duration { return time.Since(f.loop.asked) }

// Started reports whether the feed has a cache and may be filling it.
func (f *Feed) Started() bool { return closed(f.life.started) && f.cache != nil }

// Serves reports whether the cache may serve clients as soon as it is filled.
func (f *Feed) Serves() bool { return closed(f.life.serves) && f.cache != nil }

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Start waits until the feed has started. If the start fails, Start returns the reason.
func (f *Feed) Start(ctx context.Context) error {
	select {
	case <-f.life.started:
	case <-ctx.Done():
		return fmt.Errorf("%w: start %s: %w", watchcache.ErrNotReady, f, ctx.Err())
	}
	if f.cache == nil {
		return f.life.err
	}
	return nil
}

const (
	// Patience is how long a read waits for an upstream that gives no sign of life.
	Patience = time.Second
	// MostPatience is the same for an upstream that is slow for everybody, and while a feed brings an
	// earlier state to the present: in a quiet resource, a side watch may take two seconds to show a
	// sign.
	MostPatience = 4 * time.Second
	// patiently is the number of other answers for whose time a read waits.
	patiently = 10
)

// Soon is like Ready, but returns [watchcache.ErrNoProgress] once upstream has given no sign of life
// for Patience since the call. So each call waits for Patience at least, unless it succeeds.
//
// Soon waits longer if upstream takes long for something else, too: there, the read would not be
// answered sooner either, and a watch would stay there. On a busy machine, a new proxy otherwise
// forwarded hundreds of the watches that came back to it (make restarts).
func (f *Feed) Soon(ctx context.Context) error {
	began := time.Now()
	quiet := func() time.Duration { return min(time.Since(began), f.Quiet()) }
	for patience := Patience; ; {
		slice, cancel := context.WithTimeout(ctx, max(patience-quiet(), Patience/4))
		err := f.Ready(slice)
		over := err == nil || ctx.Err() != nil || slice.Err() == nil
		cancel()
		switch behind := f.Started() && !f.Serves(); {
		case over:
			return err
		case f.life.queued.Load(), quiet() < patience, behind && quiet() < MostPatience:
			continue // the proxy itself lets a queued feed wait
		case !behind:
			patience = min(max(patience, patiently*f.Shared.answers.Measure(ctx, f.Shared.Client, MostPatience-Patience, Patience/4)), MostPatience)
		}
		ended := closed(f.life.started) && f.cache == nil // the next turn says why
		if quiet() >= patience && !ended && ctx.Err() == nil {
			return fmt.Errorf("%w: %s", watchcache.ErrNoProgress, f)
		}
	}
}

// Ready waits until the cache is filled and may serve clients. After an error, the request must go
// to upstream.
func (f *Feed) Ready(ctx context.Context) error {
	err := f.Start(ctx)
	if err != nil {
		return err
	}
	select {
	case <-f.life.serves:
		_, err = f.cache.Snapshot()
		if _, lost := f.Lost(); err != nil && !lost {
			_, err = f.cache.WaitFresh(ctx, 0)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err = cmp.Or(err, f.tasks.Context.Err()); err != nil {
		return fmt.Errorf("%w: %s: %w", watchcache.ErrNotReady, f, err)
	}
	return nil
}

// Run runs the feed. It returns nil after Stop. An error says why the resource is not cacheable.
// Run calls started when Started becomes true. At that time Run has not read a state, and the cache
// does not serve clients yet.
func (f *Feed) Run(started func()) error {
	defer close(f.life.done)
	defer f.tasks.Stop()
	ctx := f.tasks.Context
	// Whatever is read later is not older than this version.
	f.askServer(ctx, versionWait, time.Now().Add(-versionShared))
	f.writing.server = f.loop.server
	if f.loop.server != "" {
		f.Touch()
	}
	d, at, err := f.Shared.Names.Describe(ctx, discovery.Question{
		GVR: f.GVR, Encoding: f.Encoding, Scope: f.Scope, Aggregated: f.Aggregated, Since: f.loop.asked, Answered: f.Touch,
	})
	if err != nil {
		f.life.err = err
		close(f.life.serves)
		close(f.life.started)
		return f.ended()
	}
	f.Alive()
	f.described, f.cache = d, watchcache.New(d.Resource, f.loop.limits)
	close(f.life.started)
	started()
	f.beginInThePast(ctx, at)
	f.life.err = f.follow(ctx)
	err = f.ended()
	f.tasks.End()
	f.Abandon()
	return err
}

// ended returns the reason why the feed ended, or nil after Stop.
func (f *Feed) ended() error {
	if f.tasks.Context.Err() != nil {
		return nil
	}
	return f.life.err
}

// Go runs a task. Its ctx ends with the feed, and the feed waits for it. Go returns false if the feed
// has ended.
func (f *Feed) Go(task func(ctx context.Context)) bool { return f.tasks.Go(task) }

// Stop ends the feed and its cache, and waits until the feed has ended.
func (f *Feed) Stop() {
	f.tasks.Stop()
	<-f.life.done
}

// Write applies a change if the cache is still in the given epoch.
func (f *Feed) Write(epoch uint64, change func() error) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.phase == stopped || f.writing.epoch != epoch {
		return errOtherEpoch
	}
	return change()
}

// Abandon ends the cache immediately. The run loop ends soon after.
func (f *Feed) Abandon() {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.writing.phase = stopped
	f.writing.epoch++
	f.cache.End()
	f.tasks.Stop()
}

// enter begins a phase. A stopped feed stays stopped. Until a feed has read a state, it does not
// fall back to an earlier phase.
func (f *Feed) enter(p phase) {
	f.writing.Lock()
	defer f.writing.Unlock()
	if was := f.writing.phase; was == watching || was < p {
		f.writing.phase = p
	}
}

func (f *Feed) phase() phase {
	f.writing.Lock()
	defer f.writing.Unlock()
	return f.writing.phase
}

// interruptible lets Interrupt end the main stream by calling cut. With a nil cut, Interrupt has no
// effect.
func (f *Feed) interruptible(cut context.CancelCauseFunc) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.writing.cut = cut
}

// Interrupt ends the main stream and passes the reason to the run loop. It reports whether there
// was a stream to end.
func (f *Feed) Interrupt(reason error) bool {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.writing.cut == nil {
		return false
	}
	f.writing.cut(reason)
	return true
}

// Position returns the log's resourceVersion and epoch.
func (f *Feed) Position() (rv, epoch uint64) {
	f.writing.Lock()
	defer f.writing.Unlock()
	return f.cache.Stats().ResourceVersion, f.writing.epoch
}

// String names the feed.
func (f *Feed) String() string { return f.Key.String() }
