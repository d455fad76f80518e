package kubectl

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

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
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

// The same writes through both servers have the same output and store the same objects.
func TestKubectlWrites(t *testing.T) {
	w := sharedWorld(t)
	w.DefineWidgets(t)
	editor := filepath.Join(t.TempDir(), "editor")
	cluster.MustT(t, os.WriteFile(editor, []byte("#!/bin/sh\nexec sed -i 's/key: .*/key: edited/' \"$1\"\n"), 0o755))
	steps := []clients.Invocation{
		clients.Kubectl("create", "configmap", "created", "--from-literal=key=1"),
		clients.Kubectl("create", "configmap", "created", "--from-literal=key=1"), // a second time: AlreadyExists
		clients.Kubectl("apply", "-f", "-").Reading(configYAML),
		clients.Kubectl("apply", "-f", "-").Reading(configYAML),
		clients.Kubectl("apply", "-f", "-").Reading(strings.Replace(configYAML, `"1"`, `"2"`, 1)),
		clients.Kubectl("apply", "-f", "-", "--dry-run=server", "-o", "jsonpath={.data}").Reading(configYAML),
		clients.Kubectl("apply", "-f", "-").Reading(deploymentYAML + "---\n" + widgetYAML),
		clients.Kubectl("apply", "--server-side", "-f", "-").Reading(configYAML),
		clients.Kubectl("apply", "--server-side", "--field-manager=other", "-f", "-").Reading(strings.Replace(configYAML, `"1"`, `"3"`, 1)),
		clients.Kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-").Reading(strings.Replace(configYAML, `"1"`, `"3"`, 1)),
		clients.Kubectl("apply", "--server-side", "-f", "-").Reading(widgetYAML),
		clients.Kubectl("apply", "-f", "-").Reading("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: BAD}\n"),
		clients.Kubectl("apply", "-f", "-").Reading("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\nnonsense: 1\n"),
		clients.Kubectl("edit", "configmap", "created").With("KUBE_EDITOR=" + editor),
		clients.Kubectl("edit", "configmap", "created").With("KUBE_EDITOR=true"), // the editor changes nothing
		clients.Kubectl("patch", "deployment", "web", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"none:2"}]}}}}`),
		clients.Kubectl("patch", "configmap", "created", "--type=merge", "-p", `{"data":{"more":"1"}}`),
		clients.Kubectl("patch", "configmap", "created", "--type=json", "-p", `[{"op":"remove","path":"/data/more"}]`),
		clients.Kubectl("patch", "configmap", "created", "--type=json", "-p", `[{"op":"remove","path":"/data/none"}]`),
		clients.Kubectl("patch", "widget", "w", "--type=merge", "-p", `{"spec":{"size":2}}`),
		clients.Kubectl("patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", `{"status":{"observedGeneration":1}}`),
		clients.Kubectl("label", "configmap", "created", "colour=red"),
		clients.Kubectl("annotate", "configmap", "created", "note=ünïcode"),
		clients.Kubectl("scale", "deployment", "web", "--replicas=3"),
		clients.Kubectl("set", "image", "deployment/web", "main=none:3"),
		clients.Kubectl("replace", "-f", "-").Reading(strings.Replace(configYAML, `"1"`, `"4"`, 1)),
		clients.Kubectl("run", "one", "--image=none"),
		clients.Kubectl("run", "two", "--image=none", "--labels=app=gone"),
		clients.Kubectl("delete", "pod", "-l", "app=gone", "--grace-period=0", "--force"),
		clients.Kubectl("delete", "-f", "-").Reading(widgetYAML),
		clients.Kubectl("delete", "configmap", "missing"),
		clients.Kubectl("delete", "configmap", "missing", "--ignore-not-found"),
	}
	outside, through := w.Namespace(t, "outside"), w.Namespace(t, "through")
	fronts := w.Fronts(t)
	for _, step := range steps {
		said := both(func(front int) string {
			ns, step := [...]string{outside, through}[front], step
			step.Args = append([]string{"-n", ns}, step.Args...)
			return strings.ReplaceAll(stable(fronts[front].Run(t, step)), ns, "NAMESPACE")
		})
		if said[0] != said[1] {
			t.Errorf("kubectl %s\n--- apiserver\n%s--- proxy\n%s", strings.Join(step.Args, " "), said[0], said[1])
		}
	}
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "pods"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		clients.Widgets,
	} {
		want, got := essence(t, w, gvr, outside), essence(t, w, gvr, through)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the proxy leaves\n%v\nthe apiserver\n%v", gvr.Resource, got, want)
		}
		if len(want) == 0 && gvr != clients.Widgets {
			t.Errorf("no %s are left to compare", gvr.Resource)
		}
	}
}

// essence returns the objects of a namespace without the fields that differ even if two objects
// come from the same commands.
func essence(t *testing.T, w *clients.World, gvr schema.GroupVersionResource, namespace string) []map[string]any {
	t.Helper()
	list, err := w.Dynamic.Resource(gvr).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
	cluster.MustT(t, err)
	objects := []map[string]any{}
	for _, o := range list.Items {
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "namespace"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		fields := o.GetManagedFields()
		for i := range fields {
			fields[i].Time = nil
		}
		// The apiserver sorts the entries by the time of the write, in seconds.
		slices.SortFunc(fields, func(a, b metav1.ManagedFieldsEntry) int {
			return cmp.Or(cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Subresource, b.Subresource))
		})
		o.SetManagedFields(fields)
		notes := o.GetAnnotations()
		for name, value := range notes {
			notes[name] = strings.ReplaceAll(value, namespace, "NAMESPACE") // the annotation in which apply stores the last configuration
		}
		o.SetAnnotations(notes)
		objects = append(objects, o.Object)
	}
	return objects
}
