//go:build verify

package faults

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// checksOften makes each self-check come within the patience of a test.
const checksOften = "cache: {selfCheckInterval: 5s}\n"

// Two apiservers of one version stand behind one address. A feature gate is turned on at one, and the
// stream resumes there. Objects that have not changed have another default now, at the same
// resourceVersion. The next self-check finds it.
func TestFeatureGateTurnedOn(t *testing.T) {
	const gate, users = "--feature-gates=MaxUnavailableStatefulSet=", `common,common,1,"system:masters"` + "\n"
	etcd := cluster.APIServerT(t, cluster.Options{Users: users}) // only for its etcd
	off := cluster.APIServerT(t, cluster.Options{Users: users, Etcd: etcd.Etcd, Flags: []string{gate + "false"}})
	namespace := off.NamespaceT(t, "gates")
	labels := map[string]string{"a": "b"}
	create := func(api *cluster.APIServer, name string) {
		_, err := api.Client().AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.StatefulSetSpec{ServiceName: "s", Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	create(off, "old")
	on := cluster.APIServerT(t, cluster.Options{Users: users, Etcd: etcd.Etcd, Flags: []string{gate + "true"}})
	apis := []*cluster.APIServer{off, on}
	var turn atomic.Int64
	relay := cluster.RelayT(t, func() string { return apis[turn.Load()].Address() })
	authorities := slices.Concat(bytes.TrimSpace(off.CA), []byte("\n"), bytes.TrimSpace(on.CA), []byte("\n"))
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: cluster.KubeconfigT(t, "https://"+relay.Address(), authorities, "common"), Settings: checksOften,
	})
	direct, proxied := on.EndpointT(t), proxy.EndpointT(t)
	read := func(e *cluster.Endpoint, accept string) []byte {
		return e.GetT(t, "/apis/apps/v1/statefulsets?resourceVersion=0", http.Header{"Accept": {accept}}).Body
	}
	forms := []string{"application/json", "application/vnd.kubernetes.protobuf"}
	shows := func(name string) {
		for _, accept := range forms {
			cluster.Eventually(t, name+" is seen", func() bool { return bytes.Contains(read(proxied, accept), []byte(name)) })
		}
	}
	shows("old")
	create(off, "later") // so that the stream is ahead of the other server's start
	shows("later")
	turn.Store(1)
	relay.End(true)
	off.Kill()
	create(on, "last")
	shows("last")
	for _, accept := range forms {
		cluster.Eventually(t, accept+" is as upstream writes it now", func() bool { return bytes.Equal(read(proxied, accept), read(direct, accept)) })
	}
	if got := read(proxied, forms[0]); bytes.Count(got, []byte(`"maxUnavailable":1`)) != 3 {
		t.Errorf("the gate has set no default: %s", got)
	}
}

// The group of a CustomResourceDefinition moves to an aggregated API. Upstream's watch of the
// definition's objects goes on. From the next self-check on, the group is not cached any more.
func TestGroupBecomesAggregated(t *testing.T) {
	gears := schema.GroupVersionResource{Group: "moved.test", Version: "v1", Resource: "gears"}
	main, extension := cluster.APIServerT(t, cluster.Options{}), cluster.APIServerT(t, cluster.Options{})
	namespace := main.NamespaceT(t, "moves")
	extension.NamespaceT(t, namespace)
	for name, api := range map[string]*cluster.APIServer{"of-the-definition": main, "of-the-extension": extension} {
		if err := api.Define(t.Context(), gears, "Gear", map[string]any{}, nil); err != nil {
			t.Fatal(err)
		}
		_, err := api.Dynamic().Resource(gears).Namespace(namespace).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "moved.test/v1", "kind": "Gear", "metadata": map[string]any{"name": name},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := extension.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everybody"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:unauthenticated"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: main.Kubeconfig, Settings: checksOften})
	direct, proxied := main.EndpointT(t), proxy.EndpointT(t)
	shows := func(e *cluster.Endpoint, name string) bool {
		return bytes.Contains(e.GetT(t, "/apis/moved.test/v1/gears?resourceVersion=0", nil).Body, []byte(name))
	}
	cluster.Eventually(t, "the definition's objects are cached", func() bool { return shows(proxied, "of-the-definition") && proxy.CachedT(t, "gears") })

	_, port, err := net.SplitHostPort(extension.Address())
	if err != nil {
		t.Fatal(err)
	}
	_, err = main.Client().CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "extension"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	services := main.Dynamic().Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	patch := fmt.Sprintf(`{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},
		"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":%q,"name":"extension","port":%s}}}`, namespace, port)
	if _, err := services.Patch(t.Context(), "v1.moved.test", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "upstream serves the extension's objects", func() bool { return shows(direct, "of-the-extension") })
	cluster.Eventually(t, "so does the proxy", func() bool { return shows(proxied, "of-the-extension") })
	if proxy.CachedT(t, "gears") {
		t.Error("an aggregated API is cached, although no setting allows it")
	}
}
