package read

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Feeds gives access to the feeds of resources; upstream.Feeds implements it. Open returns a feed
// whose filled cache contains all objects that a read may need. If Open fails, the request is
// forwarded. After watchcache.ErrNotReady, many requests may be forwarded at the same time. After
// object.ErrNoEncoding, another encoding may work. If since is not 0, a new feed should have the
// history since that resourceVersion.
type Feeds interface {
	Open(
		ctx context.Context, gvr schema.GroupVersionResource, w object.Want,
		encoding object.Encoding, since uint64,
	) (Feed, error)
	// Lost returns, without waiting, the time since a feed of the resource lost upstream.
	Lost(gvr schema.GroupVersionResource) time.Duration
	// AnswersGets reports, without waiting, whether a feed has a state for gets without a
	// resourceVersion (see Feed.Recent).
	AnswersGets(gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding) bool
	// Caches reports whether a read may have a feed. It does not wait.
	Caches(gvr schema.GroupVersionResource, w object.Want) bool
}

// Feed is a cached resource.
type Feed interface {
	Cache() *watchcache.Cache
	// Warnings returns the Warning headers of all upstream responses about the resource.
	Warnings() []string
	// Lost reports whether the feed has lost contact with upstream, and for how long.
	Lost() (age time.Duration, lost bool)
	// CompressesWatches reports whether upstream compresses watches of the resource.
	CompressesWatches() bool
	// ServesConsistent reports whether the cache answers reads of the most recent state.
	// Configuration may leave them to upstream.
	ServesConsistent() bool
	// Recent returns a recent state and its largest possible age, if configuration allows one.
	Recent() (s watchcache.Snapshot, age time.Duration, ok bool)
	// Fresh returns a state that is not older than the call. After any error, upstream must answer.
	// The proof may take some seconds, for which only a caller that waits is made to wait.
	Fresh(ctx context.Context, waits bool) (watchcache.Snapshot, error)
}

// Options are the settings of reads.
type Options struct {
	// SyncTimeout limits a request's wait for a starting feed, before the request is forwarded.
	SyncTimeout time.Duration
	// MaxStaleness limits the age of the state that the cache returns while upstream is lost; 0
	// means no limit. Only reads that accept an older state get it.
	MaxStaleness time.Duration
	// Access authenticates and authorizes clients. If nil, requests have the proxy's own rights.
	Access *access.Access
	// Recheck is the interval between reviews of the right to an open watch; 0 means no reviews.
	Recheck time.Duration
	// Compression says which watches are compressed.
	Compression watch.Compression
}

// Limiter enforces the limits of clients.
type Limiter interface {
	// AdmitWatch counts an open watch of the request's user until done is called.
	AdmitWatch(req *exchange.Request) (done func(), refusal *exchange.Response)
	// GaveUp answers a request that gave up waiting. limit is the name of the limit in metrics.
	GaveUp(req *exchange.Request, err error, limit, message string) *exchange.Response
}

// Metrics count what happens to reads. metrics.Metrics implements it.
type Metrics interface {
	// Lag returns what counts the delivery lags of a resource.
	Lag(rt exchange.Route) *watch.Lag
	// Panicked counts a panic that the calling function has recovered, and logs it.
	Panicked(log *zap.Logger, place string, reason any, fields ...zap.Field)
}

// Reader answers reads from the caches.
type Reader struct {
	Config
	options atomic.Pointer[Options]
	tables  table.Registry
	grants  *grants.Eras // of views
	events  watch.Events
}

// Config has the parts of a Reader.
type Config struct {
	Feeds   Feeds
	Derived *derived.Store
	Memory  *fair.Pool  // of users, for large events
	Slots   *fair.Slots // for expensive reads
	Limits  Limiter
	Metrics Metrics
	Log     *zap.Logger
	Life    *exchange.Life
}

// New returns a Reader.
func New(c Config, o Options) *Reader {
	rd := &Reader{
		Config: c,
		tables: table.Registry{Log: c.Log},
		grants: grants.NewEras(),
	}
	rd.SetOptions(o)
	return rd
}

// SetOptions changes the options. Open watches keep the old ones.
func (rd *Reader) SetOptions(o Options) { rd.options.Store(&o) }

// Options returns the options of new reads.
func (rd *Reader) Options() *Options { return rd.options.Load() }

type reading struct {
	*exchange.Request
	plan
	source
	derived   *derived.Store
	meter     fair.Meter
	narrowing *grants.Narrowing // nil unless a view narrows the read
	listed    uint64            // resourceVersion of the listed state
	age       time.Duration     // age of the state; 0 for the most recent state
}

type read struct {
	reading
	walk    derived.Selected   // see selected
	refusal *exchange.Response // of all namespaces, if the read is narrowed
	expired *exchange.Response // the response to a watch that starts before the history
}

// Answer answers a read from the cache, or reports why upstream must answer.
func (rd *Reader) Answer(ctx context.Context, req *exchange.Request) Result {
	r := &read{reading: reading{
		Request: req,
		plan:    plan{Route: req.Route},
		derived: rd.Derived,
	}}
	resp, err := rd.answer(ctx, r)
	if err == nil {
		return Result{Response: resp}
	}
	if r.Resumes {
		return Result{Response: r.mustBegin()} // upstream must not answer, either
	}
	if r.narrowing != nil {
		if resp = r.narrowFailure(err); resp != nil {
			return Result{Response: resp}
		}
	}
	v := Result{Reason: cmp.Or(reasonOf(err), Uncached), Expired: r.expired}
	if v.Reason.Stale() && r.mostRecentGet() {
		v.Reason = MostRecent // as if there were no cache
	}
	return v
}

func (rd *Reader) answer(ctx context.Context, r *read) (resp *exchange.Response, err error) {
	if err := cacheable(r.Request); err != nil {
		return nil, err
	}
	r.plan, err = parse(r.Request)
	switch {
	case !rd.Feeds.Caches(r.GVR, r.want()):
		return nil, Uncached
	case err != nil:
		return nil, Parameters
	}
	r.Resumes = r.Identity != nil && r.View.Narrows(r.plan.Route) && r.Kind == wire.Watch &&
		!r.WithState()
	r.negotiate(r.Request, r.Header.Get("Accept"))
	switch {
	case !r.Answerable(r.Name):
		return nil, Parameters
	case len(r.Choices) == 0:
		return nil, OtherForm
	case r.mostRecentGet() && (r.LimitsAge || !rd.answersGet(&r.plan)):
		return nil, MostRecent
	case r.mostRecentGet():
		// Upstream uses a later choice only if it does not support the first.
		r.Choices = r.Choices[:1]
	}
	if refusal, err := rd.authorize(ctx, r); refusal != nil || err != nil {
		return refusal, err
	}
	r.source, err = rd.open(ctx, &r.plan)
	if r.Alone && (errors.Is(err, OtherTable) || errors.Is(err, OtherForm)) {
		r.source, err = rd.openPlain(ctx, r.Request, r.plan, err)
	}
	if err != nil {
		return nil, err
	}
	if refusal := rd.narrowed(r); refusal != nil {
		return refusal, nil
	}
	r.meter = fair.NewMeter(ctx, r.Request, rd.Slots, r.Kind != wire.Watch)
	if r.Kind == wire.Watch {
		return rd.watch(ctx, r)
	}
	defer r.meter.End()
	try := r.list
	if r.Name != "" {
		try = r.get
	}
	resp, err = try(ctx)
	if err != nil {
		resp, err = r.retried(ctx, err, try)
	}
	if r.meter.Failed() != nil {
		return rd.Limits.GaveUp(
			r.Request, r.meter.Failed(), "reads",
			"too many reads that take long wait for their turn",
		), nil
	}
	if tooLarge, ok := errors.AsType[*tooLargeError](err); ok {
		return r.fail(tooLarge.status), nil
	}
	return resp, err
}
