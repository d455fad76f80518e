package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ErrNotCacheable says that a resource cannot be cached by its nature. Requests
// for it are forwarded.
var ErrNotCacheable = errors.New("resource cannot be cached")

// errNotServed may be untrue a moment later: somebody creates the CRD.
var errNotServed = errors.New("upstream does not serve the resource")

// discover finds a resource in upstream's discovery and checks that it can be
// listed and watched and, unless aggregated APIs are welcome, is served by the
// apiserver itself: others have resourceVersions and a history of their own.
func (c *Client) discover(ctx context.Context, gvr schema.GroupVersionResource, aggregated bool) (*metav1.APIResource, error) {
	var list metav1.APIResourceList
	path := resourcePath(schema.GroupVersionResource{Group: gvr.Group, Version: gvr.Version}, "")
	if err := c.read(ctx, gvr, path[:len(path)-1], &list); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == gvr.Resource })
	if i < 0 {
		return nil, fmt.Errorf("%w: %s", errNotServed, gvr)
	}
	found := &list.APIResources[i]
	for _, verb := range []string{"list", "watch"} {
		if !slices.Contains(found.Verbs, verb) {
			return nil, fmt.Errorf("%w: %s has no verb %s", ErrNotCacheable, gvr, verb)
		}
	}
	if (found.Group != "" && found.Group != gvr.Group) || (found.Version != "" && found.Version != gvr.Version) {
		return nil, fmt.Errorf("%w: %s is served as %s/%s", ErrNotCacheable, gvr, found.Group, found.Version)
	}
	if aggregated {
		return found, nil
	}
	return found, c.checkLocal(ctx, gvr)
}

// checkLocal asks who serves a group and version. A server without an
// aggregator, or one that does not let us look, serves what it discovers.
func (c *Client) checkLocal(ctx context.Context, gvr schema.GroupVersionResource) error {
	if gvr.Group == "" {
		return nil
	}
	var service struct {
		Spec struct {
			Service *struct{ Name string } `json:"service"`
		} `json:"spec"`
	}
	apiservices := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	err := c.read(ctx, apiservices, resourcePath(apiservices, "")+"/"+gvr.Version+"."+gvr.Group, &service)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return err
	case service.Spec.Service != nil:
		return fmt.Errorf("%w: %s is served by the aggregated API %s", ErrNotCacheable, gvr, service.Spec.Service.Name)
	}
	return nil
}

func (c *Client) read(ctx context.Context, gvr schema.GroupVersionResource, path string, into any) error {
	resp, err := c.get(ctx, "discover", gvr, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read upstream %s: %w", path, err)
	}
	return nil
}
