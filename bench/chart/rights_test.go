package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const proxyIdentity = "system:serviceaccount:" + namespace + ":" + releaseName

// limit bounds each wait of a test.
const limit = time.Minute

// With exactly the rights that the chart renders, the proxy serves from its cache, and the
// apiserver denies none of the proxy's own requests. These include the requests by which the proxy
// finds out about its upstream.
func TestRightsSuffice(t *testing.T) {
	w := sharedWorld(t)
	w.audit.SkipT(t) // other tests cause denials on purpose
	p := w.proxyWithRights(t, `{cachedResources: [pods, events, deployments.apps, widgets.example.com]}`)
	reads := p.Client(w.api.Token).RESTClient()
	for _, path := range []string{"/api/v1/pods", "/api/v1/events", "/apis/apps/v1/deployments", "/apis/example.com/v1/widgets"} {
		// Soon after its creation, the apiserver refuses watches of a custom resource for about a
		// second. Meanwhile it answers the proxy's clients itself.
		cluster.Within(t, limit, path+" comes from the cache", func() bool {
			must(t, reads.Get().AbsPath(path).Param("resourceVersion", "0").Do(t.Context()).Error())
			resource := cluster.Label("resource", filepath.Base(path))
			return p.MetricsT(t).Sum("watchproxy_requests_total", resource, `source="cache"`) > 0
		})
	}
	must(t, p.Stop())

	rights := []string{
		"get apiservices", "list apiservices", "watch apiservices",
		"get customresourcedefinitions", "list customresourcedefinitions", "watch customresourcedefinitions",
		"create tokenreviews", "create subjectaccessreviews", "get configmaps", "watch pods", "watch widgets",
	}
	cluster.Within(t, limit, fmt.Sprint("the proxy uses its rights to ", rights), func() bool {
		used := map[string]bool{}
		for _, r := range w.audit.PeekT(t) {
			if r.User.Username == proxyIdentity {
				used[r.Verb+" "+r.ObjectRef.Resource] = true
			}
		}
		return !slices.ContainsFunc(rights, func(right string) bool { return !used[right] })
	})
	for _, r := range w.audit.PeekT(t) {
		if r.User.Username == proxyIdentity && (r.ResponseStatus.Code == 403 || r.ResponseStatus.Code == 401) {
			t.Errorf("denied: %s %s: %d", r.Verb, r.RequestURI, r.ResponseStatus.Code)
		}
	}
}

// proxyWithRights applies the objects that give the proxy its rights, and starts it.
func (w *world) proxyWithRights(t *testing.T, values string) *cluster.Proxy {
	t.Helper()
	all := render(t, parseValues(t, values))
	for _, o := range all.of("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding") {
		must(t, w.apply(t.Context(), o))
	}
	return w.proxy(t, namespace, all, true)
}

// proxy starts a proxy with the rendered configuration, except for addresses, and a token of its service
// account. With tls it also has another certificate.
func (w *world) proxy(t *testing.T, ns string, all objects, tls bool) *cluster.Proxy {
	t.Helper()
	w.awaitRights(t, ns)
	file := filepath.Join(t.TempDir(), "config.yaml")
	text, err := yaml.Marshal(configuration(t, all))
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
	return cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: w.api.KubeconfigT(t, w.api.URL, w.token(t, ns)), TLS: tls,
		Args: []string{"--config", file, "--authentication", "delegated"},
	})
}

// awaitRights waits until the apiserver knows the rights that the proxy of a release needs to start.
// They come from all kinds of bindings.
func (w *world) awaitRights(t *testing.T, ns string) {
	t.Helper()
	must(t, w.api.AwaitRights(t.Context(), "system:serviceaccount:"+ns+":"+releaseName,
		authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		authorizationv1.ResourceAttributes{Verb: "watch", Resource: "pods"},
		authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"},
		authorizationv1.ResourceAttributes{Verb: "update", Resource: "secrets", Namespace: ns, Name: releaseName + "-generated-ca"},
		authorizationv1.ResourceAttributes{Verb: "update", Resource: "configmaps", Namespace: ns, Name: releaseName + "-ca"}))
}

// token returns a token of the release's service account, like the one that the kubelet gets.
func (w *world) token(t *testing.T, ns string) string {
	t.Helper()
	request, err := w.admin.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), releaseName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return request.Status.Token
}
