package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Caches hands out the cache of a resource, filled. Warnings are the Warning
// headers that upstream sends with every answer about the resource. Any error
// means that the request has to be forwarded.
type Caches interface {
	Cache(ctx context.Context, gvr schema.GroupVersionResource) (cache *watchcache.Cache, warnings []string, err error)
}

// streamLag is how long the stream may take to bring a resourceVersion that a
// client asked for. Beyond that upstream has to answer: it may have got there by
// a write to another resource, of which a quiet stream says nothing for a minute.
const streamLag = 500 * time.Millisecond

// read is a get, list or watch that the cache may answer.
type read struct {
	*request
	route
	params
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
	switch {
	case r.name != "":
		return r.get(ctx)
	case r.watch:
		return s.watch(ctx, r)
	default:
		return r.list(ctx)
	}
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
		return !r.pretty && r.initialEvents == nil && (r.rvGiven || r.token != "")
	}
}

// open finds the cache and compiles the selection.
func (s *Server) open(ctx context.Context, r *read) error {
	waiting, cancel := context.WithTimeout(ctx, s.options.SyncTimeout)
	defer cancel()
	var err error
	if r.cache, r.warnings, err = s.caches.Cache(waiting, r.gvr); err != nil {
		return errForward
	}
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
	id := r.header.Get("Audit-Id")
	if id == "" {
		id = uuid.NewString()
	}
	resp.header.Set("Audit-Id", id)
}

// fresh returns a state not older than rv. Upstream answers if it takes too long
// or the client sets a bound of its own.
func (r *read) fresh(ctx context.Context, rv uint64) (watchcache.Snapshot, error) {
	wait := streamLag
	if r.timeout {
		wait = 0
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	snapshot, err := r.cache.WaitFresh(ctx, rv)
	if err != nil {
		return snapshot, errForward
	}
	return snapshot, nil
}
