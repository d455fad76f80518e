//go:build verify

package faults

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// An API moves from a CustomResourceDefinition to an aggregated apiserver while its cache is open.
// Upstream's watch of the custom resource stays open. Reads and new watches get the objects of the
// aggregated apiserver, and the group is not cached any more.
func TestAPIMoves(t *testing.T) {
	ctx := t.Context()
	aggregated := cluster.APIServerT(t, cluster.Options{Flags: []string{"--anonymous-auth=true"}})
	api := cluster.APIServerT(t, cluster.Options{})
	of := schema.GroupVersionResource{Group: "moves.test", Version: "v1", Resource: "widgets"}
	must := func(_ any, err error) {
		t.Helper()
		cluster.MustT(t, err)
	}
	// The aggregator has no certificate for the other apiserver here.
	must(aggregated.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "anonymous"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "system:anonymous", APIGroup: "rbac.authorization.k8s.io"}},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin", APIGroup: "rbac.authorization.k8s.io"},
	}, metav1.CreateOptions{}))
	create := func(s *cluster.APIServer, name string) {
		must(s.Dynamic().Resource(of).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "moves.test/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
		}}, metav1.CreateOptions{}))
	}
	for name, s := range map[string]*cluster.APIServer{"defined": api, "aggregated": aggregated} {
		must(nil, s.Define(ctx, of, "Widget", map[string]any{"spec": map[string]any{"type": "object"}}, nil))
		create(s, name)
	}
	for i := range 400 { // its revisions are higher, as if both apiservers shared an etcd
		must(aggregated.Client().CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"x":"%d"}}}`, i), metav1.PatchOptions{}))
	}
	create(aggregated, "newest")
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig})
	const path = "/apis/moves.test/v1/namespaces/default/widgets"
	lists := func(e *cluster.Endpoint, query, name string) bool {
		a := e.GetT(t, path+query, nil)
		return a.Status == http.StatusOK && gjson.GetBytes(a.Body, "items.#.metadata.name").Raw == name
	}
	cluster.Eventually(t, "the cache is filled", func() bool {
		return lists(proxy.EndpointT(t), "", `["defined"]`) && proxy.MetricsT(t).Sum("watchproxy_feed_objects", cluster.Label("resource", "widgets")) == 1
	})

	u, err := url.Parse(aggregated.URL)
	must(u, err)
	port, err := strconv.Atoi(u.Port())
	must(port, err)
	must(api.Client().CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: u.Hostname(), Ports: []corev1.ServicePort{{Port: int32(port)}},
	}}, metav1.CreateOptions{}))
	must(api.Dynamic().Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}).
		Patch(ctx, "v1.moves.test", types.MergePatchType, fmt.Appendf(nil,
			`{"metadata":{"labels":null},"spec":{"insecureSkipTLSVerify":true,"service":{"name":"other","namespace":"default","port":%d}}}`, port), metav1.PatchOptions{}))
	for _, query := range []string{"", "?resourceVersion=0"} {
		cluster.Eventually(t, "the aggregated apiserver answers", func() bool { return lists(api.EndpointT(t), query, `["aggregated","newest"]`) })
		cluster.Eventually(t, "the proxy shows its objects", func() bool { return lists(proxy.EndpointT(t), query, `["aggregated","newest"]`) })
	}
	watch, err := proxy.EndpointT(t).Watch(ctx, cluster.Get(path+"?watch=1&timeoutSeconds=5"))
	must(watch, err)
	defer watch.Body.Close()
	create(aggregated, "later")
	var seen strings.Builder
	for buffer := make([]byte, 4<<10); ; {
		n, err := watch.Body.Read(buffer)
		if seen.Write(buffer[:n]); err != nil {
			break
		}
	}
	if !strings.Contains(seen.String(), `"later"`) {
		t.Errorf("a new watch saw %q", seen.String())
	}
	if proxy.CachedT(t, "widgets") {
		t.Error("an aggregated API is cached, although no setting allows it")
	}
}
