package shards

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// resource is a collection that the tests read.
type resource struct {
	schema.GroupVersionResource
	kind       string
	clusterful bool   // its objects have no namespace
	field      string // a selectable field besides the name; its values are those of colors
}

var (
	configmaps = resource{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap", false, ""}
	pods       = resource{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod", false, "spec.nodeName"}
	widgets    = resource{schema.GroupVersionResource{Group: "shards.test", Version: "v1", Resource: "widgets"}, "Widget", false, "spec.color"}
	nodes      = resource{schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "Node", true, ""}
)

var resources = []resource{configmaps, pods, widgets, nodes}

// colors are the values of labels and selectable fields.
var colors = []string{"red", "green", "blue"}

// path returns the path of the collection in a namespace, or of the whole collection.
func (r resource) path(namespace string) string {
	root := "/api/v1"
	if r.Group != "" {
		root = "/apis/" + r.Group + "/" + r.Version
	}
	if namespace != "" && !r.clusterful {
		root += "/namespaces/" + namespace
	}
	return root + "/" + r.Resource
}

// object returns an object with a color and further labels.
func (r resource) object(name, color string, labels map[string]string) *unstructured.Unstructured {
	all := map[string]any{"color": color}
	for key, value := range labels {
		all[key] = value
	}
	o := map[string]any{
		"apiVersion": r.GroupVersion().String(), "kind": r.kind,
		"metadata": map[string]any{"name": name, "labels": all, "annotations": map[string]any{"note": "a\"quote <" + name + ">"}},
	}
	const long = 60 // such that lists are long enough for compression
	switch r {
	case configmaps:
		o["data"] = map[string]any{"text": strings.Repeat("some text of "+name+"\n", long), "color": color}
	case pods:
		o["spec"] = map[string]any{"nodeName": color, "containers": []any{map[string]any{"name": "main", "image": "i-" + name}}}
	case widgets:
		o["spec"] = map[string]any{"color": color, "text": strings.Repeat(name, 1+len(name)%3)}
	case nodes:
		o["spec"] = map[string]any{"podCIDR": "10.0.0.0/24"}
	}
	return &unstructured.Unstructured{Object: o}
}

// seeded are the objects that no test changes.
type seeded struct {
	namespaces  []string
	middle, end string              // resourceVersions when half of the objects, and all, existed
	uids        map[string][]string // by resource
}

// inSeeded labels the objects that no test changes.
var inSeeded = map[string]string{"of": "seed"}

// prepare creates the objects, and waits until all caches have them.
func (w *world) prepare(tb testing.TB) {
	tb.Helper()
	ctx := tb.Context()
	selectable := map[string]any{"selectableFields": []any{map[string]any{"jsonPath": ".spec.color"}}}
	text := map[string]any{"type": "string"}
	schema := map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{"color": text, "text": text}}}
	for _, s := range []*side{w.on, w.off} {
		if err := s.server.Define(ctx, widgets.GroupVersionResource, widgets.kind, schema, selectable); err != nil {
			tb.Fatal(err)
		}
	}
	w.settle(tb) // so that the caches have the history, too
	const namespaces, each = 5, 16
	for i := range namespaces {
		w.seeded.namespaces = append(w.seeded.namespaces, w.on.server.NamespaceT(tb, fmt.Sprintf("seeded-%d", i)))
	}
	create := func(half int) {
		const atOnce = 8
		tb.Helper()
		err := workload.Parallel(ctx, namespaces*each*len(resources)/2, atOnce, func(ctx context.Context, i int) error {
			r, n := resources[i%len(resources)], i/len(resources)*2+half
			_, err := w.create(ctx, r, w.seeded.namespaces[n%namespaces], r.object(fmt.Sprintf("seed-%d", n), colors[cluster.Draw(len(colors), r.Resource, fmt.Sprint(n))], inSeeded))
			return err
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	create(0)
	w.seeded.middle = w.versionT(tb)
	create(1)
	w.seeded.end = w.versionT(tb)
	w.settle(tb)
	w.seeded.uids = map[string][]string{}
	for _, r := range resources {
		list := mustT(tb, w.on.api, as(direct, cluster.Get(r.path("")+"?labelSelector=of%3Dseed"))).Body
		for _, uid := range gjson.GetBytes(list, "items.#.metadata.uid").Array() {
			w.seeded.uids[r.Resource] = append(w.seeded.uids[r.Resource], uid.Str)
		}
		if len(w.seeded.uids[r.Resource]) != namespaces*each {
			tb.Fatalf("there are %d %s", len(w.seeded.uids[r.Resource]), r.Resource)
		}
	}
}

// settle waits until all caches have what was written before.
func (w *world) settle(tb testing.TB) {
	tb.Helper()
	for _, r := range resources {
		for _, e := range []*cluster.Endpoint{w.on.api, w.off.api, w.on.proxy, w.off.proxy} {
			mustT(tb, e, as(direct, cluster.Get(r.path(""))))
		}
	}
}

// versionT returns the newest resourceVersion.
func (w *world) versionT(tb testing.TB) string {
	tb.Helper()
	return gjson.GetBytes(mustT(tb, w.on.api, as(direct, cluster.Get(configmaps.path("")+"?limit=1"))).Body, "metadata.resourceVersion").Str
}

func (w *world) create(ctx context.Context, r resource, namespace string, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if r.clusterful {
		namespace = ""
	}
	created, err := w.dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", r.Resource, namespace, o.GetName(), err)
	}
	return created, nil
}

// The users of TestAllowed, and the token file with them.
const some, nobody = "some", "nobody"

func tokenOf(user string) string { return user + "-token" }

func tokenFile() (text string) {
	for _, name := range []string{some, nobody} {
		text += fmt.Sprintf("%s,%s,%s-uid\n", tokenOf(name), name, name)
	}
	return text
}
