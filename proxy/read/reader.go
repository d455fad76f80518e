package read

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/query"
	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Feeds gives access to the feeds of resources. Open returns a feed whose cache is filled. On any
// error of Open, the request is forwarded. watchcache.ErrNotReady says that many requests may be
// forwarded at the same time. object.ErrNoEncoding says that another encoding may work. If since is
// not 0, a new feed should have the history since that resourceVersion.
type Feeds interface {
	Open(ctx context.Context, gvr schema.GroupVersionResource, encoding object.Encoding, since uint64) (Feed, error)
	// Lost tells for how long a feed of the resource has had no contact with upstream. It does not
	// wait.
	Lost(gvr schema.GroupVersionResource) time.Duration
	// Joins tells whether a feed answers a get of the most recent state at no cost upstream, or
	// with an older state that configuration allows. If upstream would have to review the client's
	// rights, the get has a cost. Joins does not wait.
	Joins(gvr schema.GroupVersionResource, encoding object.Encoding, allowed func() bool) bool
	// Caches tells whether a resource may have a feed. It does not wait.
	Caches(gvr schema.GroupVersionResource) bool
}

// Feed is a cached resource.
type Feed interface {
	Cache() *watchcache.Cache
	// Warnings are the Warning headers of all of upstream's answers about the resource.
	Warnings() []string
	// Lost tells for how long the feed has had no contact with upstream, if it has none.
	Lost() (age time.Duration, lost bool)
	// ServesConsistent tells whether Fresh may be called. Configuration may leave reads of the most
	// recent state to upstream.
	ServesConsistent() bool
	// Recent returns a recent state and its largest possible age, if configuration allows one.
	Recent() (s watchcache.Snapshot, age time.Duration, ok bool)
	// Leaves tells whether a list should go upstream, because upstream usually answers faster than
	// Fresh.
	Leaves(scope watchcache.Scope) bool
	// Fresh returns a state that is not older than the call. On any error upstream has to answer.
	// With a scope, Fresh may fail because upstream would answer faster.
	Fresh(ctx context.Context, scope *watchcache.Scope) (watchcache.Snapshot, error)
	// Takes is the time that upstream takes for a list. Answered records how long a list took, and
	// whether upstream answered it.
	Takes(scope watchcache.Scope) time.Duration
	Answered(scope watchcache.Scope, took time.Duration, ok bool)
}

// Options are the settings of reads.
type Options struct {
	// SyncTimeout bounds the time for which a request waits for a starting feed before it is
	// forwarded.
	SyncTimeout time.Duration
	// FailOnLoss makes reads fail while upstream is lost. Otherwise the cache answers reads that
	// accept an older state, for as long as MaxStaleness, or without a limit if that is 0.
	FailOnLoss   bool
	MaxStaleness time.Duration
	// Access authenticates and authorizes clients. Without it, requests act as the proxy.
	Access *access.Access
	// Recheck is the interval at which the right to an open watch is reviewed; 0 means never.
	Recheck time.Duration
}

// Limiter enforces the limits of clients.
type Limiter interface {
	// AdmitWatch counts an open watch of the request's user until done is called.
	AdmitWatch(req *exchange.Request) (done func(), refusal *exchange.Response)
	// GaveUp answers a request that gave up waiting. The name of the limit is for metrics.
	GaveUp(req *exchange.Request, err error, limit, message string) *exchange.Response
}

// Reader answers reads from the caches.
type Reader struct {
	Config
	// unwritable holds weak pointers to caches with metadata that package wire cannot convert.
	// Metadata watches of these caches are forwarded.
	unwritable sync.Map
	tables     table.Registry
}

// Config has the parts of a Reader.
type Config struct {
	Feeds     Feeds
	Derived   *derived.Store
	Workspace *fair.Workspace
	Slots     *fair.Queue // for expensive reads
	Options   func() Options
	Limits    Limiter
	Log       *zap.Logger
	// Draining ends when the server begins to drain. Each watch ends DrainShare later.
	Draining   context.Context //nolint:containedctx // it is the server's
	DrainShare func() time.Duration
}

// New returns a Reader.
func New(c Config) *Reader { return &Reader{Config: c, tables: table.Registry{Log: c.Log}} }

// read is a get, list or watch that the cache may answer.
type read struct {
	*exchange.Request
	exchange.Route
	query.Params
	feed     Feed
	cache    *watchcache.Cache
	resource *object.Resource
	filter   *filter.Filter
	choice   wire.Choice
	form     wire.Form
	rows     *table.Rows // of a Table
	derived  *derived.Store
	// workspace holds what is made for this read alone.
	workspace *fair.Workspace
	meter     fair.Meter
	warnings  []string
	age       time.Duration      // the age of the state; 0 for the most recent state
	insists   bool               // the cache should answer even if upstream would answer faster
	timed     *Timed             // see Verdict
	tooEarly  *exchange.Response // the answer to a watch from before the history
}

// Answer answers a read from the cache, or tells why upstream has to answer. If insists is true,
// the cache answers even if upstream would answer faster.
func (rd *Reader) Answer(ctx context.Context, req *exchange.Request, rt exchange.Route, insists bool) Verdict {
	r := &read{Request: req, Route: rt, derived: rd.Derived, workspace: rd.Workspace, insists: insists}
	resp, err := rd.answer(ctx, r)
	if err == nil {
		return Verdict{Answer: resp}
	}
	v := Verdict{Reason: Uncached, Timed: r.timed, Expired: r.tooEarly}
	if reason := reasonOf(err); reason != "" {
		v.Reason = reason
	}
	if v.Reason.Stale() && r.joinsFreshRun() {
		v.Reason = MostRecent // as if there were no cache
	}
	return v
}

func (rd *Reader) answer(ctx context.Context, r *read) (resp *exchange.Response, err error) {
	if err := rd.cacheable(r.Request, r.Route); err != nil {
		return nil, err
	}
	if r.Params, err = query.Parse(r.Query); err != nil {
		return nil, Parameters
	}
	choices := wire.Negotiate(r.Header.Get("Accept"), r.kind(), r.Pretty())
	switch {
	case !r.answerable():
		return nil, Parameters
	case len(choices) == 0:
		return nil, Form
	case r.joinsFreshRun() && !rd.mayJoin(r, choices):
		return nil, MostRecent
	case r.joinsFreshRun():
		choices = choices[:1] // upstream takes a further choice only if it lacks the first
	}
	if refusal, err := rd.authorize(ctx, r); refusal != nil || err != nil {
		return refusal, err
	}
	if err := rd.open(ctx, r, choices); err != nil {
		return nil, err
	}
	r.meter = fair.NewMeter(ctx, r.Request, rd.Slots, r.kind() != wire.Watch)
	if r.kind() == wire.Watch {
		return rd.watch(ctx, r)
	}
	defer r.meter.End()
	answer := r.list
	if r.Name != "" {
		answer = r.get
	}
	resp, err = answer(ctx)
	if err != nil {
		resp, err = r.retried(ctx, err, answer)
	}
	if r.meter.Failed() != nil {
		return rd.Limits.GaveUp(r.Request, r.meter.Failed(), "reads", "too many reads that take long wait for their turn"), nil
	}
	if tooLarge, ok := errors.AsType[*tooLargeError](err); ok {
		return r.fail(tooLarge.status()), nil
	}
	return resp, err
}

// cacheable tells, before the query is parsed, why the cache cannot answer; nil if it may.
func (rd *Reader) cacheable(req *exchange.Request, rt exchange.Route) error {
	switch {
	case req.Method != http.MethodGet || !rt.Resource || !rt.Plain || req.Body != nil || req.WantsUpgrade():
		return NotARead
	case req.Identity == nil && (req.Identified() || req.Impersonates()):
		// Without authentication, a client that tells who it is may not be the user that the cache
		// reads as.
		return Credentials
	case !rd.Feeds.Caches(rt.GVR):
		return Uncached
	}
	return nil
}

// kind is the kind of read, which decides on the form of the answer.
func (r *read) kind() wire.Read {
	switch {
	case r.Name != "":
		return wire.Get
	case r.Watch:
		return wire.Watch
	}
	return wire.List
}

// answerable tells whether a cache could answer, before a feed starts.
func (r *read) answerable() bool {
	switch {
	case r.Name != "":
		return r.Match == "" && r.InitialEvents == nil
	case r.Watch:
		return r.watchable()
	default:
		return r.InitialEvents == nil
	}
}

// joinsFreshRun tells whether the read is a get of the most recent state. The cache answers such a
// get if this costs upstream nothing.
func (r *read) joinsFreshRun() bool { return r.Name != "" && !r.RVGiven }

// mayJoin tells whether the get costs upstream nothing. A Table might have to start a feed of rows.
func (rd *Reader) mayJoin(r *read, choices []wire.Choice) bool {
	return len(choices) > 0 && !choices[0].Table && rd.Feeds.Joins(r.GVR, keptAs(choices[0]), func() bool {
		if r.Identity == nil {
			return true
		}
		what, a := r.asked(), rd.Options().Access
		u, ok := a.KnownUser(r.Identity, r.Header)
		return ok && a.Allows(what.attributes(u))
	})
}

// open finds the cache of the first choice that has one.
func (rd *Reader) open(ctx context.Context, r *read, choices []wire.Choice) error {
	for _, r.choice = range choices {
		err := rd.openFeed(ctx, r)
		switch {
		case errors.Is(err, object.ErrNoEncoding):
			continue
		case errors.Is(err, watchcache.ErrNotReady):
			return Stale
		case err != nil:
			return cmp.Or(reasonOf(err), Uncached)
		}
		if err := r.prepare(); err != nil {
			return err
		}
		return rd.allowStale(r)
	}
	return Form
}

// openFeed opens the feed in a choice's encoding, and for a Table also the feed of the rows. Protobuf is served in upstream's own bytes.
// Custom resources have no protobuf feed, but their metadata can be written in protobuf.
func (rd *Reader) openFeed(ctx context.Context, r *read) (err error) {
	ctx, cancel := context.WithTimeout(ctx, rd.Options().SyncTimeout)
	defer cancel()
	switch {
	case r.choice.Table:
		return rd.openTable(ctx, r)
	case r.IncludeGiven:
		return Parameters
	case r.choice.Encoding == wire.Protobuf:
		r.feed, err = rd.Feeds.Open(ctx, r.GVR, object.Protobuf, r.since())
		if !r.choice.Partial || !errors.Is(err, object.ErrNoEncoding) {
			return err
		}
	}
	r.feed, err = rd.Feeds.Open(ctx, r.GVR, object.JSON, r.since())
	return err
}

// keptAs is the encoding of the cache for a form.
func keptAs(c wire.Choice) object.Encoding {
	if c.Encoding == wire.Protobuf {
		return object.Protobuf
	}
	return object.JSON
}

// since is the resourceVersion that a watch resumes from, 0 for other reads.
func (r *read) since() uint64 {
	if r.kind() != wire.Watch || r.withState() {
		return 0
	}
	return r.RV
}

// prepare compiles the filter and the form.
func (r *read) prepare() (err error) {
	r.cache, r.warnings = r.feed.Cache(), r.feed.Warnings()
	r.resource = r.cache.Resource()
	if r.resource.Namespaced {
		if r.Name != "" && r.Namespace == "" {
			return NotARead // upstream knows no such path
		}
	} else if r.Namespace != "" && !r.isNamespaceObject() {
		return NotARead
	}
	namespace := r.Namespace
	if !r.resource.Namespaced {
		namespace = ""
	}
	if r.filter, err = filter.New(r.resource, namespace, r.Labels, r.Fields); err != nil {
		return Parameters
	}
	kind := wire.Kind{
		Kind: r.resource.Kind, ListKind: r.resource.ListKind, APIVersion: r.resource.APIVersion(), Sorted: r.resource.SelfDescribing,
		Protobuf: r.resource.Encoding == object.Protobuf,
	}
	if r.rows != nil {
		r.form = wire.NewTable(kind, r.Include, r.rows)
	} else {
		r.form = wire.NewForm(r.choice, kind)
	}
	return nil
}

// isNamespaceObject tells whether the path is /api/v1/namespaces/NAME. The name of a namespace is
// also its namespace.
func (r *read) isNamespaceObject() bool {
	return r.GVR.Group == "" && r.GVR.Resource == "namespaces" && r.Name == r.Namespace
}

// respond makes a 200 response with kube-apiserver's usual headers.
func (r *read) respond() *exchange.Response {
	resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	resp.Header.Set("Content-Type", r.form.ContentType())
	r.Stamp(resp)
	return r.withAge(resp)
}

// fail answers with a Status.
func (r *read) fail(s metav1.Status) *exchange.Response {
	return r.withAge(r.Fail(s, exchange.FromCache))
}

// withAge adds upstream's warnings, and the age of a state that may be out of date.
func (r *read) withAge(resp *exchange.Response) *exchange.Response {
	resp.Header["Warning"] = r.warnings
	if r.age > 0 {
		resp.Header.Set("Age", strconv.Itoa(int(math.Ceil(r.age.Seconds()))))
	}
	return resp
}
