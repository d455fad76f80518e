package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// collection is one resource in one version.
type collection struct {
	name       string // in the names of subtests
	root       string // "/api/v1", "/apis/apps/v1"
	resource   string
	kind       string
	namespaced bool

	one string // the name of an object, in the namespace "a" if the resource is namespaced

	// uncached is true if the apiserver answers directly from etcd. The proxy then forwards reads
	// of the most recent state.
	uncached bool
	// excluded is true if the proxy's configuration excludes the resource.
	excluded bool

	// seed sets these resourceVersions. At past, the proxy already follows the collection, and the
	// collection's state differs from its state at now.
	past, now uint64
}

var (
	pods       = &collection{name: "pods", root: "/api/v1", resource: "pods", kind: "Pod", namespaced: true, one: "web-1"}
	configMaps = &collection{name: "configmaps", root: "/api/v1", resource: "configmaps", kind: "ConfigMap", namespaced: true, one: "escapes"}
	nodes      = &collection{name: "nodes", root: "/api/v1", resource: "nodes", kind: "Node", one: "n1"}
	namespaces = &collection{name: "namespaces", root: "/api/v1", resource: "namespaces", kind: "Namespace", one: "a"}
	leases     = &collection{name: "leases", root: "/apis/coordination.k8s.io/v1", resource: "leases", kind: "Lease", namespaced: true, one: "leader"}
	endpoints  = &collection{name: "endpoints, deprecated", root: "/api/v1", resource: "endpoints", kind: "Endpoints", namespaced: true, one: "backends"}
	// Custom resources. All versions of widgets have the same objects.
	widgets      = &collection{name: "widgets", root: "/apis/example.com/v1", resource: "widgets", kind: "Widget", namespaced: true, one: "numbers"}
	widgetsV2    = &collection{name: "widgets v2", root: "/apis/example.com/v2", resource: "widgets", kind: "Widget", namespaced: true, one: "numbers"}
	widgetsAlpha = &collection{name: "widgets v1alpha1, deprecated", root: "/apis/example.com/v1alpha1", resource: "widgets", kind: "Widget", namespaced: true, one: "numbers"}
	planets      = &collection{name: "planets", root: "/apis/example.com/v1", resource: "planets", kind: "Planet", one: "earth"}

	// They have many objects, or none.
	accounts   = &collection{name: "serviceaccounts", root: "/api/v1", resource: "serviceaccounts", kind: "ServiceAccount", namespaced: true}
	templates  = &collection{name: "podtemplates", root: "/api/v1", resource: "podtemplates", kind: "PodTemplate", namespaced: true}
	priorities = &collection{name: "priorityclasses", root: "/apis/scheduling.k8s.io/v1", resource: "priorityclasses"}

	// Both groups of events have the same objects.
	coreEvents = &collection{name: "events", root: "/api/v1", resource: "events", kind: "Event", namespaced: true, one: "started", uncached: true}
	newEvents  = &collection{name: "events of events.k8s.io", root: "/apis/events.k8s.io/v1", resource: "events", kind: "Event", namespaced: true, one: "started", uncached: true}

	collections = []*collection{
		pods, configMaps, nodes, namespaces, leases, endpoints, widgets, widgetsV2, widgetsAlpha, planets, coreEvents, newEvents,
	}

	// others are further collections that tests read.
	others = []*collection{
		accounts, templates, priorities, services, controllers, jobs, signingRequests, trustBundles, podCertificates, resourceSlices,
	}

	// samples has one resource of each kind: namespaced and cluster-scoped, built-in and custom,
	// and one without a cache in the apiserver.
	samples = []*collection{configMaps, nodes, widgets, planets, coreEvents}
)

// spares reports whether a test leaves out a row about a collection. A third of the rows, chosen by
// the seed, suffices for a collection that resembles one of the samples.
func (c *collection) spares(name string) bool {
	return !*allForms && c != pods && !slices.Contains(samples, c) && cluster.Draw(3, name, c.name) != 0
}

// all is the path of the whole collection.
func (c *collection) all() string { return c.root + "/" + c.resource }

// in is the path of the collection in one namespace, or of the whole collection if it has no
// namespaces.
func (c *collection) in(namespace string) string {
	if !c.namespaced {
		return c.all()
	}
	return c.root + "/namespaces/" + namespace + "/" + c.resource
}

// object is one object to write. fields holds its top level except kind, apiVersion and metadata.
// meta holds its metadata except name and namespace.
type object struct {
	of              *collection
	namespace, name string
	meta            map[string]any
	fields          map[string]any
}

func (o object) path() string { return o.of.in(o.namespace) + "/" + o.name }

func (o object) json() string {
	meta := map[string]any{"name": o.name}
	if o.of.namespaced {
		meta["namespace"] = o.namespace
	}
	maps.Copy(meta, o.meta)
	all := map[string]any{"kind": o.of.kind, "apiVersion": o.of.apiVersion(), "metadata": meta}
	maps.Copy(all, o.fields)
	b, err := json.Marshal(all)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

func (c *collection) apiVersion() string {
	if c.root == "/api/v1" {
		return "v1"
	}
	return c.root[len("/apis/"):]
}

// write sends a change to the apiserver and returns the resourceVersion in the response. For a
// deletion it returns 0, because not every response has a resourceVersion.
func write(ctx context.Context, method, target, body string) (uint64, error) {
	r := request{Method: method, Target: target, Body: body}.With("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	got, err := apiserver.Ask(ctx, r)
	if err != nil {
		return 0, err
	}
	if got.Status/100 != 2 {
		return 0, fmt.Errorf("%s %s: %d %.1000s", method, target, got.Status, got.Body)
	}
	rv, _ := strconv.ParseUint(gjson.GetBytes(got.Body, "metadata.resourceVersion").Str, 10, 64)
	return rv, nil
}

func (o object) create(ctx context.Context) (uint64, error) {
	return write(ctx, http.MethodPost, o.of.in(o.namespace), o.json())
}

func (o object) patch(ctx context.Context, patch string) (uint64, error) {
	return write(ctx, http.MethodPatch, o.path(), patch)
}

func (o object) bind(ctx context.Context, node string) error {
	_, err := write(ctx, http.MethodPost, o.path()+"/binding", `{"kind":"Binding","apiVersion":"v1","metadata":{"name":"`+o.name+
		`"},"target":{"kind":"Node","apiVersion":"v1","name":"`+node+`"}}`)
	return err
}

// patchStatus makes a change that an object's controller would make.
func (o object) patchStatus(ctx context.Context, patch string) (uint64, error) {
	return write(ctx, http.MethodPatch, o.path()+"/status", patch)
}

// remove deletes an object immediately. It skips the grace period of a pod on a node, and the
// finalizer of a replicationcontroller.
func (o object) remove(ctx context.Context) error {
	_, err := write(ctx, http.MethodDelete, o.path(), `{"gracePeriodSeconds":0,"propagationPolicy":"Background"}`)
	if err == nil && o.of == namespaces {
		// No controller runs that would empty the namespace first.
		_, err = write(ctx, http.MethodPut, o.path()+"/finalize", o.json())
	}
	return err
}

// createT is create, but fails the test on error.
func (o object) createT(tb testing.TB) uint64 {
	tb.Helper()
	rv, err := o.create(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return rv
}
