package clients

import (
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	configYAML = `apiVersion: v1
kind: ConfigMap
metadata: {name: applied}
data: {key: "1"}
`
	deploymentYAML = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "none:1"}]}
`
	widgetYAML = `apiVersion: clients.test/v1
kind: Widget
metadata: {name: w}
spec: {size: 1}
`
)

// The same writes through either server say the same, and leave the same behind.
func TestKubectlWrites(t *testing.T) {
	w := sharedWorld(t)
	newWidgets(t, w)
	editor := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(editor, []byte("#!/bin/sh\nexec sed -i 's/key: .*/key: edited/' \"$1\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	steps := []invocation{
		kubectl("create", "configmap", "created", "--from-literal=key=1"),
		kubectl("create", "configmap", "created", "--from-literal=key=1"), // again: AlreadyExists
		kubectl("apply", "-f", "-").reading(configYAML),
		kubectl("apply", "-f", "-").reading(configYAML),
		kubectl("apply", "-f", "-").reading(strings.Replace(configYAML, `"1"`, `"2"`, 1)),
		kubectl("apply", "-f", "-", "--dry-run=server", "-o", "jsonpath={.data}").reading(configYAML),
		kubectl("apply", "-f", "-").reading(deploymentYAML + "---\n" + widgetYAML),
		kubectl("apply", "--server-side", "-f", "-").reading(configYAML),
		kubectl("apply", "--server-side", "--field-manager=other", "-f", "-").reading(strings.Replace(configYAML, `"1"`, `"3"`, 1)),
		kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-").reading(strings.Replace(configYAML, `"1"`, `"3"`, 1)),
		kubectl("apply", "--server-side", "-f", "-").reading(widgetYAML),
		kubectl("apply", "-f", "-").reading("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: BAD}\n"),
		kubectl("apply", "-f", "-").reading("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\nnonsense: 1\n"),
		kubectl("edit", "configmap", "created").with("KUBE_EDITOR=" + editor),
		kubectl("edit", "configmap", "created").with("KUBE_EDITOR=true"), // nothing changed
		kubectl("patch", "deployment", "web", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"none:2"}]}}}}`),
		kubectl("patch", "configmap", "created", "--type=merge", "-p", `{"data":{"more":"1"}}`),
		kubectl("patch", "configmap", "created", "--type=json", "-p", `[{"op":"remove","path":"/data/more"}]`),
		kubectl("patch", "configmap", "created", "--type=json", "-p", `[{"op":"remove","path":"/data/none"}]`),
		kubectl("patch", "widget", "w", "--type=merge", "-p", `{"spec":{"size":2}}`),
		kubectl("patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", `{"status":{"observedGeneration":1}}`),
		kubectl("label", "configmap", "created", "colour=red"),
		kubectl("annotate", "configmap", "created", "note=ünïcode"),
		kubectl("scale", "deployment", "web", "--replicas=3"),
		kubectl("set", "image", "deployment/web", "main=none:3"),
		kubectl("replace", "-f", "-").reading(strings.Replace(configYAML, `"1"`, `"4"`, 1)),
		kubectl("run", "one", "--image=none"),
		kubectl("run", "two", "--image=none", "--labels=app=gone"),
		kubectl("delete", "pod", "-l", "app=gone", "--grace-period=0", "--force"),
		kubectl("delete", "-f", "-").reading(widgetYAML),
		kubectl("delete", "configmap", "missing"),
		kubectl("delete", "configmap", "missing", "--ignore-not-found"),
	}
	outside, through := w.namespace(t, "outside"), w.namespace(t, "through")
	fronts := w.fronts(t)
	for _, step := range steps {
		var said [2]string
		for i, ns := range []string{outside, through} {
			step := step
			step.args = append([]string{"-n", ns}, step.args...)
			said[i] = strings.ReplaceAll(fronts[i].run(t, step).stable(), ns, "NAMESPACE")
		}
		if said[0] != said[1] {
			t.Errorf("kubectl %s\n--- apiserver\n%s--- proxy\n%s", strings.Join(step.args, " "), said[0], said[1])
		}
	}
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "pods"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		widgets,
	} {
		want, got := w.essence(t, gvr, outside), w.essence(t, gvr, through)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the proxy leaves\n%v\nthe apiserver\n%v", gvr.Resource, got, want)
		}
		if len(want) == 0 && gvr != widgets {
			t.Errorf("no %s are left to compare", gvr.Resource)
		}
	}
}

// essence returns the objects of a namespace without what differs between two that were made in the same way.
func (w *world) essence(t *testing.T, gvr schema.GroupVersionResource, namespace string) []map[string]any {
	t.Helper()
	list, err := w.dynamic.Resource(gvr).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objects := []map[string]any{}
	for _, o := range list.Items {
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "namespace"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		fields := o.GetManagedFields()
		for i := range fields {
			fields[i].Time = nil
		}
		// The apiserver sorts them by the second in which they were written.
		slices.SortFunc(fields, func(a, b metav1.ManagedFieldsEntry) int {
			return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Subresource, b.Subresource))
		})
		o.SetManagedFields(fields)
		notes := o.GetAnnotations()
		for name, value := range notes {
			notes[name] = strings.ReplaceAll(value, namespace, "NAMESPACE") // what apply remembers
		}
		o.SetAnnotations(notes)
		objects = append(objects, o.Object)
	}
	return objects
}

// A delete returns when the object is gone, not before: kubectl waits for a finalizer with a watch.
func TestKubectlDeleteWaits(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "kubectl-delete")
	f := w.fronts(t)[1]
	f.must(t, kubectl("-n", ns, "apply", "-f", "-").reading(configYAML))
	configs := w.admin.CoreV1().ConfigMaps(ns)
	finalizer := func(value string) {
		t.Helper()
		patch := []byte(`{"metadata":{"finalizers":` + value + `}}`)
		if _, err := configs.Patch(t.Context(), "applied", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	finalizer(`["clients.test/hold"]`)
	watches := func() float64 {
		return proxyMetrics(t, w.proxy).sum("watchproxy_requests_total", "verb", "watch", "resource", "configmaps")
	}
	before := watches()
	deleting := f.start(t, kubectl("-n", ns, "delete", "configmap", "applied"))
	if line := deleting.line(t); !strings.HasPrefix(line, `configmap "applied" deleted`) {
		t.Errorf("it says %q", line)
	}
	eventually(t, "kubectl watches", func() bool { return watches() > before })
	if _, err := configs.Get(t.Context(), "applied", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	finalizer(`[]`)
	if code := deleting.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, deleting.stderr)
	}
}
