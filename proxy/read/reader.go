package read

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Feeds hands out the feed of a resource, its cache filled. Any error means that
// the request has to be forwarded; watchcache.ErrNotReady that many may have to be,
// object.ErrNoEncoding that another encoding may do. A feed that starts should have the history
// since a resourceVersion, unless that is 0.
type Feeds interface {
	Open(ctx context.Context, gvr schema.GroupVersionResource, encoding object.Encoding, since uint64) (Feed, error)
	// Lost tells, at once, for how long upstream could not be reached, if there is a feed of
	// a resource that cannot reach it.
	Lost(gvr schema.GroupVersionResource) time.Duration
	// Joins tells, at once, whether there is a feed that answers a get of the most recent state at no
	// cost to upstream, that is unless it has to be asked whether the client may; or with a state that
	// configuration allows, whatever that costs.
	Joins(gvr schema.GroupVersionResource, encoding object.Encoding, allowed func() bool) bool
	// Caches tells, at once, whether there may be a feed of a resource.
	Caches(gvr schema.GroupVersionResource) bool
}

// Feed is a resource that is cached.
type Feed interface {
	Cache() *watchcache.Cache
	// Warnings are the Warning headers that upstream sends with every answer
	// about the resource.
	Warnings() []string
	// Lost tells for how long upstream could not be reached, if it cannot.
	Lost() (age time.Duration, lost bool)
	// ServesConsistent tells whether Fresh is of any use: configuration may leave
	// reads of the most recent state to upstream.
	ServesConsistent() bool
	// Recent returns a state that configuration allows instead of the most recent one, and how old it
	// may be, if there is one.
	Recent() (s watchcache.Snapshot, age time.Duration, ok bool)
	// Leaves tells whether upstream answers a list sooner than Fresh.
	Leaves(scope watchcache.Scope) bool
	// Fresh returns a state that is not older than the call. Any error means that upstream has to
	// answer. The scope is nil unless that would do as well.
	Fresh(ctx context.Context, scope *watchcache.Scope) (watchcache.Snapshot, error)
	// Takes is how long upstream takes for a list. Answered tells how long it took for one, and whether
	// it answered.
	Takes(scope watchcache.Scope) time.Duration
	Answered(scope watchcache.Scope, took time.Duration, ok bool)
}

// Options are the settings of reads.
type Options struct {
	// SyncTimeout is how long a request waits for a feed that is being started before it is forwarded.
	SyncTimeout time.Duration
	// FailOnLoss has reads fail while upstream cannot be reached. Otherwise they are answered until
	// that has been so for MaxStaleness, if it is not 0.
	FailOnLoss   bool
	MaxStaleness time.Duration
	// Access authenticates and authorizes clients. If it is nil, requests act as the proxy.
	Access *access.Access
	// Recheck is after how long the right to an open watch is reviewed again; 0 for never.
	Recheck time.Duration
}

// Limiter refuses what is beyond a limit of its client.
type Limiter interface {
	// AdmitWatch counts an open watch of the request's user until done is called.
	AdmitWatch(req *exchange.Request) (done func(), refusal *exchange.Response)
	// GaveUp answers a request that has waited in vain, for something that limit names.
	GaveUp(req *exchange.Request, err error, limit, message string) *exchange.Response
}

// Reader answers reads from the caches.
type Reader struct {
	Config
	// unwritable holds weak pointers to the caches with metadata that cannot be written in another
	// form here: metadata watches of them are forwarded.
	unwritable sync.Map
}

// Config has what a Reader is made of.
type Config struct {
	Feeds     Feeds
	Derived   *derived.Store
	Workspace *fair.Workspace
	Slots     *fair.Queue // for expensive reads
	Options   func() Options
	Limits    Limiter
	// Draining ends when the server begins to drain. Each watch ends DrainShare later.
	Draining   context.Context //nolint:containedctx // it is the server's
	DrainShare func() time.Duration
}

// New returns a Reader.
func New(c Config) *Reader { return &Reader{Config: c} }

// read is a get, list or watch that the cache may answer.
type read struct {
	*exchange.Request
	exchange.Route
	params
	feed     Feed
	cache    *watchcache.Cache
	resource *object.Resource
	filter   *filter.Filter
	choice   wire.Choice
	form     wire.Form
	derived  *derived.Store
	// workspace is for what is made for this read alone.
	workspace *fair.Workspace
	meter     fair.Meter
	warnings  []string
	age       time.Duration      // of the state that is shown; 0 for the most recent one
	insists   bool               // that the cache should answer, though upstream may do so sooner
	timed     *Timed             // see Verdict
	tooEarly  *exchange.Response // the answer to a watch from before the history
}

// Answer answers a read from the cache, or tells why upstream has to. It insists if the cache should
// answer though upstream may do so sooner.
func (rd *Reader) Answer(ctx context.Context, req *exchange.Request, rt exchange.Route, insists bool) Verdict {
	r := &read{Request: req, Route: rt, derived: rd.Derived, workspace: rd.Workspace, insists: insists}
	resp, err := rd.answer(ctx, r)
	if err == nil {
		return Verdict{Answer: resp}
	}
	v := Verdict{Reason: Beyond, Timed: r.timed, Expired: r.tooEarly}
	if reason, ok := errors.AsType[Reason](err); ok {
		v.Reason = reason
	}
	if v.Reason.Stale() && r.joins() {
		v.Reason = Beyond // as if there were no cache
	}
	return v
}

func (rd *Reader) answer(ctx context.Context, r *read) (resp *exchange.Response, err error) {
	if !rd.cacheable(r.Request, r.Route) {
		return nil, Beyond
	}
	if r.params, err = parseParams(r.Query); err != nil {
		return nil, err
	}
	choices := wire.Negotiate(r.Header.Get("Accept"), r.kind(), r.Pretty())
	if !r.answerable() || r.joins() && !rd.joins(r, choices) {
		return nil, Beyond
	}
	if r.joins() {
		choices = choices[:1] // the others are for where upstream has not got the first
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
	if r.meter.Failed() != nil {
		return rd.Limits.GaveUp(r.Request, r.meter.Failed(), "reads", "too many reads that take long wait for their turn"), nil
	}
	if tooLarge, ok := errors.AsType[*tooLargeError](err); ok {
		return r.fail(tooLarge.status()), nil
	}
	return resp, err
}

// cacheable tells by the outside of a request whether it may be one for the cache.
func (rd *Reader) cacheable(req *exchange.Request, rt exchange.Route) bool {
	return req.Method == http.MethodGet && rt.Resource && rt.Plain && req.Body == nil && !req.WantsUpgrade() &&
		// Without authentication, whoever brings credentials is not the one that the
		// cache reads as; and with it, whom somebody impersonates is upstream's to judge.
		(req.Identity != nil || !req.Identified()) && !req.Impersonates() && rd.Feeds.Caches(rt.GVR)
}

// kind is what is asked for, as far as it decides on the form of the answer.
func (r *read) kind() wire.Read {
	switch {
	case r.Name != "":
		return wire.Get
	case r.watch:
		return wire.Watch
	}
	return wire.List
}

// answerable tells whether a cache could answer at all, before one is started.
func (r *read) answerable() bool {
	switch {
	case r.Name != "":
		return r.match == "" && r.initialEvents == nil
	case r.watch:
		return r.watchable()
	default:
		return r.initialEvents == nil
	}
}

// joins tells a get of the most recent state. The cache answers it if that costs nothing.
func (r *read) joins() bool { return r.Name != "" && !r.rvGiven }

// joins tells whether the cache answers such a get.
func (rd *Reader) joins(r *read, choices []wire.Choice) bool {
	return len(choices) > 0 && rd.Feeds.Joins(r.GVR, keptAs(choices[0]), func() bool {
		what := r.asked()
		return r.Identity == nil || rd.Options().Access.Allows(what.attributes(r.Identity.User))
	})
}

// open finds the cache for the first of the choices that there is one for.
func (rd *Reader) open(ctx context.Context, r *read, choices []wire.Choice) error {
	for _, r.choice = range choices {
		err := rd.openFeed(ctx, r)
		switch {
		case errors.Is(err, object.ErrNoEncoding):
			continue
		case errors.Is(err, watchcache.ErrNotReady):
			return Stale
		case err != nil:
			return Beyond
		}
		if err := r.prepare(); err != nil {
			return err
		}
		return rd.tolerate(r)
	}
	return Beyond
}

// openFeed opens the feed whose bytes the choice is made of: protobuf is served as
// upstream writes it. Custom resources have no such feed, but their metadata can
// be written so.
func (rd *Reader) openFeed(ctx context.Context, r *read) (err error) {
	ctx, cancel := context.WithTimeout(ctx, rd.Options().SyncTimeout)
	defer cancel()
	if r.choice.Encoding == wire.Protobuf {
		r.feed, err = rd.Feeds.Open(ctx, r.GVR, object.Protobuf, r.since())
		if !r.choice.Partial || !errors.Is(err, object.ErrNoEncoding) {
			return err
		}
	}
	r.feed, err = rd.Feeds.Open(ctx, r.GVR, object.JSON, r.since())
	return err
}

// keptAs is the encoding of the cache that answers in a form.
func keptAs(c wire.Choice) object.Encoding {
	if c.Encoding == wire.Protobuf {
		return object.Protobuf
	}
	return object.JSON
}

// since is where a watch goes on from, 0 for other reads.
func (r *read) since() uint64 {
	if r.kind() != wire.Watch || r.withState() {
		return 0
	}
	return r.rv
}

// prepare compiles the selection and the form of the answer.
func (r *read) prepare() (err error) {
	r.cache, r.warnings = r.feed.Cache(), r.feed.Warnings()
	r.resource = r.cache.Resource()
	if r.resource.Namespaced {
		if r.Name != "" && r.Namespace == "" {
			return Beyond // upstream knows no such path
		}
	} else if r.Namespace != "" && !r.isNamespaceObject() {
		return Beyond
	}
	namespace := r.Namespace
	if !r.resource.Namespaced {
		namespace = ""
	}
	if r.filter, err = filter.New(r.resource, namespace, r.labels, r.fields); err != nil {
		return Beyond
	}
	kept := wire.JSON
	if r.resource.Encoding == object.Protobuf {
		kept = wire.Protobuf
	}
	r.form = wire.NewForm(r.choice, wire.Kind{
		Kind: r.resource.Kind, ListKind: r.resource.ListKind, APIVersion: r.resource.APIVersion(), Sorted: r.resource.SelfDescribing,
	}, kept)
	return nil
}

// isNamespaceObject tells /api/v1/namespaces/NAME, whose name is also its namespace.
func (r *read) isNamespaceObject() bool {
	return r.GVR.Group == "" && r.GVR.Resource == "namespaces" && r.Name == r.Namespace
}

// respond makes a 200 response with the headers that every one of kube-apiserver's has.
func (r *read) respond() *exchange.Response {
	resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	resp.Header.Set("Content-Type", r.form.ContentType())
	resp.Header["Warning"] = r.warnings
	r.tellAge(resp)
	r.Stamp(resp)
	return resp
}

// fail answers with a Status, in the form that the client takes for one.
func (r *read) fail(s metav1.Status) *exchange.Response {
	resp := r.Fail(s, exchange.FromCache)
	resp.Header["Warning"] = r.warnings
	r.tellAge(resp)
	return resp
}

// tellAge tells how old the state may be that an answer shows, if it is not the most recent one.
func (r *read) tellAge(resp *exchange.Response) {
	if r.age > 0 {
		resp.Header.Set("Age", strconv.Itoa(int(math.Ceil(r.age.Seconds()))))
	}
}
