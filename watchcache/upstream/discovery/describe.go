package discovery

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Description is how upstream serves a resource.
type Description struct {
	Resource   object.Resource
	Warnings   []string // Warning headers that belong to every response
	Definition Version  // of a custom resource
}

// Question asks how upstream serves the part of a resource within Scope.
type Question struct {
	GVR        schema.GroupVersionResource
	Encoding   object.Encoding
	Scope      object.Scope
	Aggregated bool          // an aggregated API may serve the resource
	Since      time.Time     // the discovery documents are requested then or later
	Heard      *atomic.Int64 // gets the moment of each answer between the steps, unless it is nil
}

func (q *Question) heard() {
	if q.Heard != nil {
		q.Heard.Store(watchcache.Moment(time.Now()))
	}
}

var errClock = notCacheable("ages would be wrong, because this clock may differ from upstream's")

// Describe answers a question. It also returns upstream's resourceVersion.
func (d *Discovery) Describe(
	ctx context.Context, q Question,
) (is Description, at uint64, err error) {
	gvr, encoding, scope := q.GVR, q.Encoding, q.Scope
	found, err := d.watchable(ctx, gvr, q.Since)
	if err != nil {
		return is, 0, err
	}
	q.heard()
	if scope.Namespace != "" && !found.Namespaced {
		return is, 0, notCacheable("%s has no namespaces", gvr)
	}
	custom := false
	if !q.Aggregated {
		if custom, err = d.checkLocal(ctx, &q); err != nil {
			return is, 0, err
		}
		q.heard()
	}
	is.Resource = object.Resource{
		GVR: gvr, Kind: found.Kind, Namespaced: found.Namespaced, Encoding: encoding, Scope: scope,
		NoNamespaceField: client.NoNamespaceField(gvr), NoWatchCache: client.NoWatchCache(gvr),
	}
	r := &is.Resource
	r.Fields = client.OnTheWire(r, client.BuiltinFields(gvr))
	p, err := d.client.Probe(ctx, "probe", r)
	if _, right := d.client.Clock.Now(); err == nil && encoding == object.Table && !right {
		err = errClock
	}
	if err == nil && encoding == object.Table { // a Table does not show whether it is a custom one
		r.Columns.Definitions, r.Columns.Empty = p.Columns, p.EmptyRows
		r.Columns.Clock, r.Fields = &d.client.Clock, nil
		objects := *r
		objects.Encoding = object.JSON
		q.heard()
		p, err = d.client.Probe(ctx, "probe", &objects)
	}
	if err != nil {
		return is, 0, err
	}
	if custom && !p.SelfDescribing {
		return is, 0, notCacheable("%s is defined as a custom resource and is none", gvr)
	}
	if p.Foreign {
		return is, 0, notCacheable("lists of %s have another form than kube-apiserver's", gvr)
	}
	r.ListKind, r.SelfDescribing, is.Warnings = p.ListKind, p.SelfDescribing, p.Warnings
	if p.SelfDescribing {
		// Define is called before the first object is read. So no object is older than the
		// definition.
		q.heard()
		defined, err := Define(ctx, d.client, gvr)
		if err != nil {
			return is, 0, err
		}
		is.Definition, r.Converted = defined.Version, defined.converted
		r.Columns.Paths, r.Columns.Defined = defined.Columns, defined.Version != (Version{})
		if encoding != object.Table {
			r.Fields = append(r.Fields, client.CustomFields(defined.Selectable)...)
		}
	}
	return is, p.RV, nil
}
