package chart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	proxyIdentity = "system:serviceaccount:" + namespace + ":" + releaseName
	reader        = "reader"
)

// limit bounds each wait of a test.
const limit = time.Minute

// With exactly the rights that the chart renders, the proxy serves from its cache, and the
// apiserver denies none of the proxy's own requests. These include the requests by which the proxy
// finds out about its upstream.
func TestRightsSuffice(t *testing.T) {
	w := sharedWorld(t)
	w.audit.SkipT(t) // other tests cause denials on purpose
	p := w.proxyWithRights(t, `{cachedResources: [pods, events, deployments.apps, widgets.example.com]}`)
	w.readThrough(t, p)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}

	rights := []string{
		"get apiservices", "list apiservices", "watch apiservices", "get customresourcedefinitions", "list customresourcedefinitions", "watch customresourcedefinitions",
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

// The proxy does not cache other resources. It forwards requests for them with the client's
// identity.
func TestRightsAreNoMore(t *testing.T) {
	w := sharedWorld(t)
	p := w.proxyWithRights(t, `{cachedResources: [pods]}`)
	client := w.client(t, p)
	if _, err := client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	m := p.MetricsT(t)
	if n := m.Sum("watchproxy_requests_total", `verb="list"`, `resource="configmaps"`, `source="upstream"`); n != 1 {
		t.Errorf("%v lists were forwarded", n)
	}
}

// proxyWithRights applies the objects that give the proxy its rights. Then it starts a proxy with
// the service account's token and the rendered configuration, except for addresses and certificate.
func (w *world) proxyWithRights(t *testing.T, values string) *cluster.Proxy {
	t.Helper()
	all := w.grant(t, values)
	file := filepath.Join(t.TempDir(), "config.yaml")
	text, err := yaml.Marshal(configuration(t, all))
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
	return cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: w.api.KubeconfigT(t, w.api.URL, w.token(t, releaseName)), TLS: true,
		Args: []string{"--config", file, "--authentication", "delegated"},
	})
}

// grant applies the objects that give the proxy its rights.
func (w *world) grant(t *testing.T, values string) objects {
	t.Helper()
	all := render(t, parseValues(t, values))
	for _, o := range all.of("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding") {
		must(t, w.apply(t.Context(), o))
	}
	// The proxy needs these rights to start. They come from all kinds of bindings.
	w.awaitRights(t, proxyIdentity,
		authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		authorizationv1.ResourceAttributes{Verb: "watch", Resource: "pods"},
		authorizationv1.ResourceAttributes{
			Verb: "get", Resource: "configmaps", Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication",
		})
	return all
}

// awaitRights waits until the apiserver knows a user's rights.
func (w *world) awaitRights(t *testing.T, user string, rights ...authorizationv1.ResourceAttributes) {
	t.Helper()
	must(t, w.api.AwaitRights(t.Context(), user, rights...))
}

// token returns a token of a service account, like the one that the kubelet gets.
func (w *world) token(t *testing.T, name string) string {
	t.Helper()
	request, err := w.admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return request.Status.Token
}

// clientConfig returns the configuration of a client of the proxy. The client has a token and
// rights of its own.
func (w *world) clientConfig(t *testing.T, p *cluster.Proxy) *rest.Config {
	t.Helper()
	for _, o := range parseObjects(t, `{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: proxies}}`) {
		must(t, w.apply(t.Context(), o))
	}
	err := w.api.Allow(t.Context(), "", reader, cluster.Users("system:serviceaccount:"+namespace+":"+reader), rbacv1.PolicyRule{
		APIGroups: []string{"", "apps", "example.com"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch", "create", "delete"},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	c := p.RESTConfig()
	c.BearerToken = w.token(t, reader)
	return c
}

// client returns a client that may read. The apiserver learns of this right after a moment.
func (w *world) client(t *testing.T, p *cluster.Proxy) *kubernetes.Clientset {
	t.Helper()
	config := w.clientConfig(t, p)
	w.awaitRights(t, "system:serviceaccount:"+namespace+":"+reader, authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods"})
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}

// readThrough lists and watches through the proxy, and checks the source of the answers.
func (w *world) readThrough(t *testing.T, p *cluster.Proxy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	client := w.client(t, p)
	custom, err := dynamic.NewForConfig(w.clientConfig(t, p))
	must(t, err)
	pods := client.CoreV1().Pods(namespace)
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	must(t, err)
	defer events.Stop()
	if _, err := pods.Create(ctx, examplePod(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range events.ResultChan() {
		if e.Type == watch.Added && e.Object.(*corev1.Pod).Name == examplePod().Name {
			break
		} else if e.Type == watch.Error {
			t.Fatal(e.Object)
		}
	}
	for version, want := range map[string]int{"": 1, "0": 1} {
		list, err := pods.List(ctx, metav1.ListOptions{ResourceVersion: version})
		must(t, err)
		if len(list.Items) != want {
			t.Errorf("resourceVersion %q: %d pods", version, len(list.Items))
		}
	}
	must(t, pods.Delete(ctx, examplePod().Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	if _, err := client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	// Soon after its creation, the apiserver refuses watches of a custom resource for about a second.
	// Meanwhile it answers the proxy's clients itself.
	cluster.Within(t, limit, "lists of widgets come from the cache", func() bool {
		if _, err := custom.Resource(widgets).List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		return p.MetricsT(t).Sum("watchproxy_requests_total", `verb="list"`, `resource="widgets"`, `source="cache"`) > 0
	})
	m := p.MetricsT(t)
	for _, labels := range [][]string{
		{`verb="list"`, `resource="pods"`},
		{`verb="watch"`, `resource="pods"`},
		{`verb="list"`, `resource="deployments"`},
		{`verb="list"`, `resource="events"`},
	} {
		if m.Sum("watchproxy_requests_total", append(labels, `source="cache"`)...) == 0 {
			t.Errorf("none of %v came from the cache", labels)
		}
	}
}

func examplePod() *corev1.Pod {
	no, yes := false, true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "example", Namespace: namespace},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}
}
