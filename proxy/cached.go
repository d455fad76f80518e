package proxy

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// ErrNotReady says that a resource is cached, but not at the moment.
var ErrNotReady = errors.New("cache is not ready")

// Feeds hands out the feed of a resource, its cache filled. Any error means that
// the request has to be forwarded; ErrNotReady that many may have to be.
type Feeds interface {
	Open(ctx context.Context, gvr schema.GroupVersionResource) (Feed, error)
}

// Feed is a resource that is cached.
type Feed interface {
	Cache() *watchcache.Cache
	// Warnings are the Warning headers that upstream sends with every answer
	// about the resource.
	Warnings() []string
	// ServesConsistent tells whether Fresh is of any use: configuration may leave
	// reads of the most recent state to upstream.
	ServesConsistent() bool
	// Fresh returns a state that is not older than the call. Any error means that
	// upstream has to answer.
	Fresh(ctx context.Context) (watchcache.Snapshot, error)
}

// read is a get, list or watch that the cache may answer.
type read struct {
	*request
	route
	params
	feed     Feed
	cache    *watchcache.Cache
	resource *watchcache.Resource
	filter   *watchcache.Filter
	form     *wire.JSON
	warnings []string
}

// cached answers a read from the cache, or returns errForward.
func (s *Server) cached(ctx context.Context, req *request, rt route) (*response, error) {
	if !s.cacheable(req, rt) {
		return nil, errForward
	}
	p, err := parseParams(req.query, req.header.Get("User-Agent"))
	if err != nil {
		return nil, err
	}
	r := &read{request: req, route: rt, params: p}
	if !r.answerable() {
		return nil, errForward
	}
	if err := s.open(ctx, r); err != nil {
		return nil, err
	}
	if r.watch && r.name == "" {
		return s.watch(ctx, r)
	}
	answer := r.list
	if r.name != "" {
		answer = r.get
	}
	resp, err := answer(ctx)
	if tooLarge, ok := errors.AsType[*tooLargeError](err); ok {
		return r.fail(statusResponse(tooLarge.status(), fromCache)), nil
	}
	return resp, err
}

// cacheable tells by the outside of a request whether it may be one for the cache.
func (s *Server) cacheable(req *request, rt route) bool {
	return req.method == http.MethodGet && rt.resource && rt.plain && req.body == nil && !req.wantsUpgrade() &&
		// Whoever brings an identity is not the one the cache reads as.
		!req.identified() && !req.impersonates() &&
		wire.PlainJSON(req.header.Get("Accept"))
}

// answerable tells whether a cache could answer at all, before one is started.
func (r *read) answerable() bool {
	switch {
	case r.name != "":
		return r.rvGiven && !r.pretty && r.match == "" && r.initialEvents == nil
	case r.watch:
		return r.watchable()
	default:
		return !r.pretty && r.initialEvents == nil
	}
}

// open finds the cache and compiles the selection.
func (s *Server) open(ctx context.Context, r *read) error {
	waiting, cancel := context.WithTimeout(ctx, s.options.SyncTimeout)
	defer cancel()
	var err error
	if r.feed, err = s.feeds.Open(waiting, r.gvr); errors.Is(err, ErrNotReady) {
		return errStale
	} else if err != nil {
		return errForward
	}
	r.cache, r.warnings = r.feed.Cache(), r.feed.Warnings()
	r.resource = r.cache.Resource()
	if r.resource.Namespaced {
		if r.name != "" && r.namespace == "" {
			return errForward // upstream knows no such path
		}
	} else if r.namespace != "" && !r.isNamespaceObject() {
		return errForward
	}
	namespace := r.namespace
	if !r.resource.Namespaced {
		namespace = ""
	}
	if r.filter, err = r.resource.NewFilter(namespace, r.labels, r.fields); err != nil {
		return errForward
	}
	r.form = wire.NewJSON(r.resource.Kind, r.resource.ListKind, r.resource.APIVersion(), r.resource.SelfDescribing)
	return nil
}

// isNamespaceObject tells /api/v1/namespaces/NAME, whose name is also its namespace.
func (r *read) isNamespaceObject() bool {
	return r.gvr.Group == "" && r.gvr.Resource == "namespaces" && r.name == r.namespace
}

// respond makes a 200 response with the headers that every one of kube-apiserver's has.
func (r *read) respond() *response {
	resp := newResponse(http.StatusOK, fromCache)
	resp.header.Set("Content-Type", wire.ContentTypeJSON)
	resp.header["Warning"] = r.warnings
	r.stamp(resp)
	return resp
}

// fail answers with a Status.
func (r *read) fail(resp *response) *response {
	resp.header["Warning"] = r.warnings
	r.stamp(resp)
	return resp
}

func (r *request) stamp(resp *response) {
	resp.header.Set("Cache-Control", "no-cache, private")
	resp.header.Set("Audit-Id", r.auditID())
}

// auditID is the client's, or a new one.
func (r *request) auditID() string {
	if id := r.header.Get("Audit-Id"); id != "" {
		return id
	}
	return uuid.NewString()
}
