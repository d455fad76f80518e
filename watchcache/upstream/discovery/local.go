package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

var apiservices = schema.GroupVersionResource{
	Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
}

// Server is the service that serves an API, or [Local].
type Server string

// Local is the server of an API that the apiserver serves itself.
const Local Server = "Local"

// UnmarshalJSON reads the Server of an APIService.
func (s *Server) UnmarshalJSON(service []byte) error {
	var o struct {
		Spec struct {
			Service *struct{ Namespace, Name string }
		}
	}
	err := json.Unmarshal(service, &o)
	*s = Local
	if by := o.Spec.Service; by != nil {
		*s = Server(by.Namespace + "/" + by.Name)
	}
	return err
}

// ServiceName is the name of the APIService of a group and version.
func ServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

// watchable returns a resource from a discovery document that was requested at since or later. It
// returns an error unless the resource can be listed and watched.
func (d *Discovery) watchable(
	ctx context.Context, gvr schema.GroupVersionResource, since time.Time,
) (*metav1.APIResource, error) {
	found, err := d.find(ctx, gvr, since)
	if err != nil {
		return nil, err
	}
	for _, verb := range []string{"list", "watch"} {
		if !slices.Contains(found.Verbs, verb) {
			return nil, notCacheable("%s has no verb %s", gvr, verb)
		}
	}
	group, version := cmp.Or(found.Group, gvr.Group), cmp.Or(found.Version, gvr.Version)
	if group != gvr.Group || version != gvr.Version {
		return nil, notCacheable("%s is served as %s/%s", gvr, found.Group, found.Version)
	}
	return found, nil
}

// checkLocal returns an error unless the apiserver itself serves a resource. An aggregated API has
// its own resourceVersions and history.
//
// APIServices contain the server of each group and version. If the proxy may not read them, it
// treats two kinds of resources as local: kube-apiserver's own resources, and resources with a
// CustomResourceDefinition. For resources with a definition, custom is true. The caller must then
// check that the resource looks like a custom resource, because an aggregated API may have replaced
// it.
func (d *Discovery) checkLocal(ctx context.Context, q *Question) (custom bool, err error) {
	gvr := q.GVR
	if gvr.Group == "" {
		return false, nil
	}
	groups, err := d.groups(ctx)
	if err != nil {
		return false, err
	}
	if !groups.lists(apiservices.GroupVersion()) {
		return false, nil // there is no aggregator
	}
	q.heard()
	var server Server
	path := client.ResourcePath(apiservices, "") + "/" + ServiceName(gvr.GroupVersion())
	unknown := d.client.Read(ctx, apiservices, path, &server)
	switch {
	case unknown == nil && server != Local:
		return false, notCacheable("%s is served by the aggregated API %s", gvr, server)
	case unknown == nil:
		return false, nil
	case apierrors.IsForbidden(unknown):
		d.unseen.Do(func() {
			d.log.Warn("without the right to get apiservices.apiregistration.k8s.io, resources "+
				"are only cached if kube-apiserver has them itself or their definitions can be "+
				"read", zap.Error(unknown))
		})
	case !apierrors.IsNotFound(unknown):
		return false, unknown
	}
	if scheme.Scheme.IsVersionRegistered(gvr.GroupVersion()) {
		return false, nil
	}
	q.heard()
	crd, err := Define(ctx, d.client, gvr)
	switch {
	case err != nil:
		return false, err
	case crd.served:
		return true, nil
	case apierrors.IsForbidden(unknown):
		return false, notCacheable("%s may be served by an aggregated API: %w", gvr, unknown)
	}
	return false, fmt.Errorf("%w: %s has no APIService yet", ErrNotServed, gvr)
}

// Preferred returns a resource in the newest version in which upstream serves it.
func (d *Discovery) Preferred(
	ctx context.Context, gr schema.GroupResource,
) (schema.GroupVersionResource, error) {
	core := schema.GroupVersion{Version: "v1"}
	if gr.Group == core.Group {
		return core.WithResource(gr.Resource), d.Serves(ctx, core.WithResource(gr.Resource))
	}
	groups, err := d.groups(ctx)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	for _, gv := range groups.newest() {
		if gv.Group != gr.Group {
			continue
		}
		if err := d.Serves(ctx, gv.WithResource(gr.Resource)); !errors.Is(err, ErrNotServed) {
			return gv.WithResource(gr.Resource), err
		}
	}
	return schema.GroupVersionResource{}, fmt.Errorf("%w: %s", ErrNotServed, gr)
}

func (doc *document) newest() []schema.GroupVersion {
	return slices.SortedFunc(maps.Keys(doc.versions), func(a, b schema.GroupVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
}

// Local returns the watchable resources that upstream serves itself, each in one version, except
// those of documents that cannot be read. If upstream does not answer, Local fails at once, because
// each further request would be one more to an upstream that is away.
func (d *Discovery) Local(ctx context.Context) (all []object.Resource, err error) {
	groups, err := d.read(ctx, schema.GroupVersion{}, time.Now().Add(-LocalAge))
	if err != nil {
		return nil, err
	}
	seen := map[schema.GroupResource]bool{}
	for _, gv := range append([]schema.GroupVersion{{Version: "v1"}}, groups.newest()...) {
		doc, err := d.read(ctx, gv, time.Now().Add(-LocalAge))
		switch {
		case client.NoAnswer(err): // upstream itself is down
			return nil, err
		case err != nil: // an aggregated API may be down
			continue
		}
		checked := false
		for _, r := range doc.resources {
			gvr := gv.WithResource(r.Name)
			listed, watched := slices.Contains(r.Verbs, "list"), slices.Contains(r.Verbs, "watch")
			if seen[gvr.GroupResource()] || !listed || !watched {
				continue
			}
			if !checked {
				if _, err := d.checkLocal(ctx, &Question{GVR: gvr}); err != nil {
					if client.NoAnswer(err) {
						return nil, err
					}
					break
				}
				checked = true
			}
			seen[gvr.GroupResource()] = true
			all = append(all, object.Resource{
				GVR:        gvr,
				Kind:       r.Kind,
				Namespaced: r.Namespaced,
			})
		}
	}
	return all, ctx.Err()
}

// LocalAge is the maximum age of the resource lists that Local reads.
const LocalAge = time.Minute
