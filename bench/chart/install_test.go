package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The apiserver accepts all objects of each combination of values. In a restricted namespace it
// also accepts the pods of their templates, except those with hostNetwork.
func TestObjectsAreAccepted(t *testing.T) {
	w := sharedWorld(t)
	for name, values := range combinations(t) {
		t.Run(name, func(t *testing.T) { w.accepts(t, render(t, values)) })
	}
}

func (w *world) accepts(t *testing.T, all objects) {
	t.Helper()
	for _, o := range all {
		if err := w.apply(t.Context(), o, metav1.DryRunAll); err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	for _, o := range all.of("Deployment", "DaemonSet") {
		template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
		must(t, err)
		template["apiVersion"], template["kind"] = "v1", "Pod"
		pod := &unstructured.Unstructured{Object: template}
		pod.SetName("of-" + o.GetName())
		pod.SetNamespace(namespace)
		if host, _, _ := unstructured.NestedBool(pod.Object, "spec", "hostNetwork"); host {
			pod.SetNamespace("kube-system") // which allows pods in the network of their node
		}
		if err := w.apply(t.Context(), pod, metav1.DryRunAll); err != nil {
			t.Errorf("pod of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// An application's chart embeds the sidecar without TLS. (For the chart's example, see
// TestInCluster.)
func TestSidecar(t *testing.T) {
	w := sharedWorld(t)
	all := embedded(t, combinations(t)["sidecarplain"])
	for _, o := range all {
		if o.GetNamespace() == "" && o.GetKind() == "Deployment" {
			o.SetNamespace(namespace)
		}
	}
	w.accepts(t, all)

	pod := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template.Spec
	sidecar := pod.InitContainers[0]
	if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("the sidecar is no sidecar")
	}
	var kubeconfig string
	for _, o := range all.of("ConfigMap") {
		kubeconfig += as[corev1.ConfigMap](t, o).Data["kubeconfig"]
	}
	if c := configuration(t, all); !strings.Contains(kubeconfig, "server: http://"+c.Listen+"\n") {
		t.Errorf("the kubeconfig does not lead to %s:\n%s", c.Listen, kubeconfig)
	}
	for _, o := range all.of("ClusterRoleBinding", "RoleBinding") {
		if name, _, _ := unstructured.NestedString(o.Object, "roleRef", "name"); name == "system:auth-delegator" || strings.HasPrefix(name, "extension-") {
			t.Errorf("a sidecar on loopback does not need %s", name)
		}
	}
}

// hasNothingOf fails if any object is left in the release's namespace, or elsewhere with the
// namespace in its name, except for those that the test has made (Kind/name). It looks for all kinds
// of objects that the chart can create, with and without the chart's labels.
func (w *world) hasNothingOf(t *testing.T, ns string, except ...string) {
	t.Helper()
	for _, gvk := range w.kinds(t) {
		mapping, err := w.mapping.RESTMapping(gvk.GroupKind(), gvk.Version)
		must(t, err)
		list, err := w.dynamic.Resource(mapping.Resource).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, o := range list.Items {
			if (o.GetNamespace() == ns || strings.Contains(o.GetName(), ns)) && o.GetDeletionTimestamp() == nil && !slices.Contains(except, o.GetKind()+"/"+o.GetName()) {
				t.Errorf("%s %s/%s is left", o.GetKind(), o.GetNamespace(), o.GetName())
			}
		}
	}
}

// kinds returns all kinds of objects that the chart can create.
func (w *world) kinds(t *testing.T) []schema.GroupVersionKind {
	t.Helper()
	w.rendered.Do(func() {
		seen := map[schema.GroupVersionKind]bool{}
		for _, values := range combinations(t) {
			for _, o := range render(t, values) {
				seen[o.GroupVersionKind()] = true
			}
		}
		w.allKinds = slices.Collect(maps.Keys(seen))
	})
	return w.allKinds
}
