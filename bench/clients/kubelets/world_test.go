package kubelets

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	proxyUser  = "watchproxy"
	proxyToken = "watchproxy-token"
	// startLimit is the time in which all nodes must be ready.
	startLimit = 10 * time.Minute
)

// world is a cluster whose kubelets take one of the roads to the apiserver.
type world struct {
	server     *cluster.APIServer
	audit      *cluster.AuditLog
	proxies    []*cluster.Proxy
	components []*cluster.Component // the controllers, the scheduler and the kubelets
	kubelets   []*cluster.Component
}

// road says how kubelets reach the apiserver.
type road int

const (
	direct  road = iota
	perNode      // a proxy on each node, with the scopes of the chart's values-node.yaml
	shared       // one proxy for all nodes
)

func (r road) String() string {
	return [...]string{"direct", "a proxy on each node", "one proxy for all nodes"}[r]
}

// settings returns the proxies' settings.
func (r road) settings(t *testing.T) string {
	t.Helper()
	const authenticated = "authentication: {mode: delegated}\n"
	if r == shared {
		return authenticated
	}
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "charts", "watchproxy", "values-node.yaml"))
	cluster.MustT(t, err)
	var values struct {
		Config struct{ Cache json.RawMessage }
	}
	if err := yaml.Unmarshal(text, &values); err != nil || len(values.Config.Cache) == 0 {
		t.Fatalf("values-node.yaml: %v", err)
	}
	return authenticated + "cache: " + string(values.Config.Cache) + "\n"
}

func nodeName(i int) string      { return fmt.Sprint("node-", i) }
func tokenOf(node string) string { return node + "-token" }

func newWorld(t *testing.T, r road, count int) *world {
	t.Helper()
	var users strings.Builder
	fmt.Fprintf(&users, "%s,%s,watchproxy-uid\n", proxyToken, proxyUser)
	for i := range count {
		fmt.Fprintf(&users, "%s,system:node:%s,%s-uid,system:nodes\n", tokenOf(nodeName(i)), nodeName(i), nodeName(i))
	}
	w := &world{audit: &cluster.AuditLog{Path: t.TempDir() + "/audit.log"}}
	w.server = cluster.APIServerT(t, cluster.Options{
		Users: users.String(), AuditLog: w.audit.Path,
		Flags: []string{"--enable-admission-plugins=ServiceAccount", "--enable-admission-plugins=NodeRestriction"},
	})
	w.allowProxy(t)
	admin := "--kubeconfig=" + w.server.Kubeconfig
	w.start(t, "kube-controller-manager", admin, "--secure-port=0", "--leader-elect=false",
		"--service-account-private-key-file="+w.server.Dir+"/sa.key", "--root-ca-file="+w.server.Dir+"/ca.crt")
	w.start(t, "kube-scheduler", admin, "--secure-port=0", "--leader-elect=false")
	for i := range count {
		node, url, ca := nodeName(i), w.server.URL, w.server.CA
		if r == perNode || r == shared && i == 0 {
			w.startProxy(t, r, node)
		}
		if n := len(w.proxies); n > 0 {
			url, ca = w.proxies[n-1].URL, w.proxies[n-1].CA
			w.warm(t, w.proxies[n-1], node)
		}
		w.kubelets = append(w.kubelets, w.start(t, "kubelet", "--kubeconfig", cluster.KubeconfigT(t, url, ca, tokenOf(node)), "--name", node))
	}
	w.within(t, startLimit, "all nodes are ready", func() bool { return w.ready(t) == count })
	return w
}

// start starts a component.
func (w *world) start(t *testing.T, name string, args ...string) *cluster.Component {
	t.Helper()
	c := cluster.ComponentT(t, name, args...)
	w.components = append(w.components, c)
	return c
}

// within waits for a condition while all components run.
func (w *world) within(t *testing.T, bound time.Duration, what string, holds func() bool) {
	t.Helper()
	cluster.Within(t, bound, what, func() bool {
		for _, c := range w.components {
			c.CheckT(t)
		}
		return holds()
	})
}

func (w *world) startProxy(t *testing.T, r road, node string) {
	t.Helper()
	t.Setenv("NODE_NAME", node)
	w.proxies = append(w.proxies, cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: w.server.KubeconfigT(t, w.server.URL, proxyToken), Settings: r.settings(t), TLS: true,
	}))
}

// warm waits until what a kubelet watches comes from the proxy's caches. So no kubelet's first watch
// is forwarded because the cache is not filled yet.
func (w *world) warm(t *testing.T, p *cluster.Proxy, node string) {
	t.Helper()
	e := cluster.EndpointT(t, "proxy", p.URL, tokenOf(node), p.CA)
	for _, path := range []string{
		"/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D" + node,
		"/api/v1/nodes?resourceVersion=0&fieldSelector=metadata.name%3D" + node,
		"/api/v1/services?resourceVersion=0",
	} {
		cluster.Eventually(t, path+" comes from the cache", func() bool {
			before := cached(t, p)
			got := e.GetT(t, path, http.Header{"Accept": {"application/vnd.kubernetes.protobuf"}})
			return got.Status == http.StatusOK && cached(t, p) > before
		})
	}
}

// cached returns the number of a proxy's answers from its caches, or of those with labels.
func cached(t *testing.T, p *cluster.Proxy, labels ...string) float64 {
	t.Helper()
	return p.MetricsT(t).Sum("watchproxy_requests_total", append(labels, cluster.Label("source", "cache"))...)
}

// allowProxy lets the proxies list and watch pods, nodes, services, ConfigMaps, runtime classes and
// CSI drivers, and review the kubelets' tokens and rights. Everything else is forwarded.
func (w *world) allowProxy(t *testing.T) {
	t.Helper()
	reading := []string{"list", "watch"}
	for _, err := range []error{
		w.server.Allow(t.Context(), "", "watchproxy", cluster.Users(proxyUser),
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "nodes", "services", "configmaps"}, Verbs: reading},
			rbacv1.PolicyRule{APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"}, Verbs: reading},
			rbacv1.PolicyRule{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csidrivers"}, Verbs: reading},
			rbacv1.PolicyRule{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: append(reading, "get")},
			rbacv1.PolicyRule{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: append(reading, "get")},
			rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
			rbacv1.PolicyRule{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}}),
		w.server.Allow(t.Context(), "kube-system", "watchproxy", cluster.Users(proxyUser),
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"extension-apiserver-authentication"}, Verbs: append(reading, "get")}),
		w.server.AwaitRights(t.Context(), proxyUser,
			authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"},
			authorizationv1.ResourceAttributes{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}),
	} {
		cluster.MustT(t, err)
	}
}

// ready returns the number of ready nodes.
func (w *world) ready(t *testing.T) (n int) {
	t.Helper()
	list, err := w.server.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	cluster.MustT(t, err)
	for i := range list.Items {
		for _, c := range list.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				n++
			}
		}
	}
	return n
}
