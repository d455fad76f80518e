package read

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	Open(ctx context.Context, gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding, since uint64) (Feed, error)
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
	// MaxStaleness limits the age of the state that the cache returns while upstream is lost; 0 means
	// no limit. Only reads that accept an older state get it.
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

// Reader answers reads from the caches.
type Reader struct {
	Config
	unwritable unwritable
	tables     table.Registry
	grants     *grants.Eras // of views
	events     watch.Events
}

// Config has the parts of a Reader.
type Config struct {
	Feeds    Feeds
	Derived  *derived.Store
	Memory   *fair.Pool  // of users, for large events
	Slots    *fair.Slots // for expensive reads
	Options  func() Options
	Limits   Limiter
	Lag      func(rt exchange.Route) *watch.Lag // counts delivery lags; nil for no counts
	Panicked func(reason any)                   // called if a review panics
	Log      *zap.Logger
	// Draining ends when the server begins to drain. Each watch ends DrainShare later.
	Draining   context.Context //nolint:containedctx // it is the server's
	DrainShare func() time.Duration
}

// New returns a Reader.
func New(c Config) *Reader {
	return &Reader{Config: c, tables: table.Registry{Log: c.Log}, grants: grants.NewEras()}
}

// read is a get, list or watch that the cache may answer.
type read struct {
	*exchange.Request
	exchange.Route
	exchange.Params
	feed      Feed
	cache     *watchcache.Cache
	resource  *object.Resource
	filter    *object.Filter
	choice    wire.Choice
	form      wire.Form
	rows      *table.Rows // for a Table
	derived   *derived.Store
	meter     fair.Meter
	warnings  []string
	listed    uint64             // resourceVersion of the listed state
	age       time.Duration      // age of the state; 0 for the most recent state
	tooEarly  *exchange.Response // the response to a watch that starts before the history
	narrowing *grants.Narrowing  // nil unless a view narrows the read
	walk      derived.Selected   // see selected
	refusal   *exchange.Response // of all namespaces, if the read is narrowed
	resumes   bool               // a watch that does not begin with the state, if a view narrows it
}

// Answer answers a read from the cache, or reports why upstream must answer.
func (rd *Reader) Answer(ctx context.Context, req *exchange.Request, rt exchange.Route) Verdict {
	r := &read{Request: req, Route: rt, derived: rd.Derived}
	resp, err := rd.answer(ctx, r)
	if err == nil {
		return Verdict{Answer: resp}
	}
	if r.resumes {
		return Verdict{Answer: r.mustBegin()} // upstream must not answer, either
	}
	if r.narrowing != nil {
		if resp = r.narrowFailure(err); resp != nil {
			return Verdict{Answer: resp}
		}
	}
	v := Verdict{Reason: cmp.Or(reasonOf(err), Uncached), Expired: r.tooEarly}
	if v.Reason.Stale() && r.mostRecentGet() {
		v.Reason = MostRecent // as if there were no cache
	}
	return v
}

func (rd *Reader) answer(ctx context.Context, r *read) (resp *exchange.Response, err error) {
	if err := rd.cacheable(r.Request, r.Route); err != nil {
		return nil, err
	}
	r.Params, err = exchange.Parse(r.Query)
	switch {
	case !rd.Feeds.Caches(r.GVR, r.want()):
		return nil, Uncached
	case err != nil:
		return nil, Parameters
	}
	r.resumes = r.Identity != nil && r.View.Narrows(r.Route) && r.Kind(r.Name) == wire.Watch && !r.WithState()
	choices := r.choices(r.Header.Get("Accept"))
	switch {
	case !r.Answerable(r.Name):
		return nil, Parameters
	case len(choices) == 0:
		return nil, Form
	case r.mostRecentGet() && (r.limitsAge() || !rd.answersGet(r, choices)):
		return nil, MostRecent
	case r.mostRecentGet():
		choices = choices[:1] // upstream uses a later choice only if it does not support the first
	}
	if refusal, err := rd.authorize(ctx, r); refusal != nil || err != nil {
		return refusal, err
	}
	err = rd.open(ctx, r, choices)
	if r.alone() && (errors.Is(err, Table) || errors.Is(err, Form)) {
		err = rd.openPlain(ctx, r, err)
	}
	if err != nil {
		return nil, err
	}
	if refusal := rd.narrowed(r); refusal != nil {
		return refusal, nil
	}
	r.meter = fair.NewMeter(ctx, r.Request, rd.Slots, r.Kind(r.Name) != wire.Watch)
	if r.Kind(r.Name) == wire.Watch {
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
		return r.fail(tooLarge.status), nil
	}
	return resp, err
}

// choices returns the forms for an Accept header that the cache may have.
func (r *read) choices(accept string) []wire.Choice {
	choices := wire.Negotiate(accept, r.Kind(r.Name), r.Pretty())
	if fields := r.View.Of(r.GVR.GroupResource()); fields != nil {
		choices = wire.NegotiateCut(accept, r.Kind(r.Name), r.Pretty(), fields, r.GVR)
	}
	return r.withoutIndented(choices)
}

// withoutIndented leaves indented JSON, which is the last choice if any, to upstream. A list that
// upstream does not have is not indented.
func (r *read) withoutIndented(choices []wire.Choice) []wire.Choice {
	last := len(choices) - 1
	switch {
	case last < 0 || !choices[last].Pretty:
		return choices
	case !r.View.Narrows(r.Route):
		return choices[:last]
	}
	choices[last].Pretty = false
	return choices
}

// cacheable returns why the cache cannot answer, or nil. It runs before the query is parsed.
func (rd *Reader) cacheable(req *exchange.Request, rt exchange.Route) error {
	switch {
	case req.Method != http.MethodGet || !rt.Resource || !rt.Plain || req.Body != nil || req.WantsUpgrade():
		return NotARead
	case req.Header.Get("Origin") != "":
		return Parameters // upstream may let pages of this origin read the response
	case req.Identity.Anonymous(), req.Identity == nil && (req.Identified() || req.Impersonates()):
		return Credentials // the proxy does not know this client's rights
	}
	return nil
}

// want returns the selection that a cache must contain.
func (r *read) want() object.Want {
	w := r.Want(r.Route)
	w.Split = r.refusal != nil && !exchange.IsNamespaces(r.GVR.GroupResource())
	return w
}

// mostRecentGet reports whether the read is a get of the most recent state. Upstream reads one object
// at less cost than it proves a cache current. So the cache answers only within a configured maxAge.
func (r *read) mostRecentGet() bool { return r.Name != "" && !r.RVGiven }

// answersGet reports whether the cache may answer a get of the most recent state. A Table might need a
// new feed of rows.
func (rd *Reader) answersGet(r *read, choices []wire.Choice) bool {
	return len(choices) > 0 && !choices[0].Table && rd.Feeds.AnswersGets(r.GVR, r.want(), exchange.KeptAs(choices[0]))
}

// open tries the choices in order and opens the feed of the first choice that has a cache.
func (rd *Reader) open(ctx context.Context, r *read, choices []wire.Choice) error {
	for _, r.choice = range choices {
		err := rd.openFeed(ctx, r)
		switch {
		case errors.Is(err, object.ErrNoEncoding):
			continue
		case errors.Is(err, watchcache.ErrNoProgress):
			return Stuck
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

// openPlain opens the feed of a form that the client accepts as well, because only upstream could make
// the other one, and it has no such list. includeObject means nothing for this form. Without such a form,
// openPlain returns the error of the other one.
func (rd *Reader) openPlain(ctx context.Context, r *read, err error) error {
	accept, ok := wire.AcceptsPlain(r.Header.Get("Accept"))
	if !ok {
		return err
	}
	r.IncludeGiven = false
	return rd.open(ctx, r, r.choices(accept))
}

// openFeed opens the feed for a choice. For a Table, it also opens the feed of the rows. Custom
// resources have no protobuf feed, but their metadata can be written in protobuf.
func (rd *Reader) openFeed(ctx context.Context, r *read) (err error) {
	ctx, cancel := context.WithTimeout(ctx, rd.Options().SyncTimeout)
	defer cancel()
	switch {
	case r.choice.Table && !table.Forwarded(r.GVR.GroupResource()):
		return rd.openTable(ctx, r)
	case r.choice.Table:
		return Table
	case r.IncludeGiven:
		return Parameters
	case r.choice.Partial && object.InternalMetadata(r.GVR):
		return Form
	case r.choice.MediaType == wire.Protobuf:
		r.feed, err = rd.Feeds.Open(ctx, r.GVR, r.want(), object.Protobuf, r.Since(r.Name))
		if !r.choice.Partial || !errors.Is(err, object.ErrNoEncoding) {
			return err
		}
	}
	r.feed, err = rd.Feeds.Open(ctx, r.GVR, r.want(), object.JSON, r.Since(r.Name))
	return err
}

// prepare compiles the filter and creates the form.
func (r *read) prepare() (err error) {
	r.cache, r.warnings = r.feed.Cache(), r.feed.Warnings()
	r.resource = r.cache.Resource()
	if r.resource.Namespaced {
		if r.Name != "" && r.Namespace == "" {
			return NotARead // upstream has no such path
		}
	} else if r.Namespace != "" && !r.IsNamespace() {
		return NotARead
	}
	namespace := r.Namespace
	if !r.resource.Namespaced {
		namespace = ""
	}
	if r.filter, err = object.NewFilter(r.resource, namespace, r.Labels, r.Fields); err != nil {
		return Parameters
	}
	kind := wire.Kind{
		Kind: r.resource.Kind, ListKind: r.resource.ListKind, APIVersion: r.resource.APIVersion(), Sorted: r.resource.SelfDescribing,
		Protobuf: r.resource.Encoding == object.Protobuf,
	}
	if r.rows != nil {
		r.form = wire.NewTable(kind, r.Include, r.rows, r.choice.Fields)
	} else {
		r.form = wire.NewForm(r.choice, kind)
	}
	return nil
}

// respond returns a 200 response with kube-apiserver's usual headers.
func (r *read) respond() *exchange.Response {
	resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	resp.Header.Set("Content-Type", r.form.ContentType())
	r.Stamp(resp)
	return r.withAge(resp)
}

func (r *read) fail(s metav1.Status) *exchange.Response {
	return r.withAge(r.Fail(s, exchange.FromCache))
}

// withAge adds upstream's warnings. If the state may be out of date, it also adds the state's age.
func (r *read) withAge(resp *exchange.Response) *exchange.Response {
	resp.Header["Warning"] = r.warnings
	if r.age > 0 {
		resp.Header.Set("Age", strconv.Itoa(int(math.Ceil(r.age.Seconds()))))
	}
	return resp
}
