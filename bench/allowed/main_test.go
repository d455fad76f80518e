package allowed

import (
	"net/http"
	"path/filepath"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m, cluster.AllAtOnce, cluster.CollectLess) }

// world is an apiserver with users and namespaces. All tests share it. Each test has namespaces and
// users of its own.
type world struct {
	server  *cluster.APIServer
	api     *cluster.Endpoint
	admin   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	audit   *cluster.AuditLog
	marks   marks
}

var sharedWorld = cluster.Shared(newWorld)

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{audit: &cluster.AuditLog{Path: filepath.Join(tb.TempDir(), "audit.log")}}
	w.server = cluster.APIServerT(tb, cluster.Options{
		Users: tokenFile(), AuditLog: w.audit.Path, Flags: []string{"--etcd-compaction-interval=0"},
	})
	w.api = cluster.EndpointT(tb, "apiserver", w.server.URL, "", w.server.CA)
	w.admin, w.dynamic = w.server.Client(), w.server.Dynamic()
	if err := w.prepare(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return w
}

// proxy is a proxy that authenticates its clients. Its own rights are those of an admin, so that
// everything that it forgets to check is shown.
type proxy struct {
	*cluster.Endpoint
	process *cluster.Proxy
}

// views are the views of all proxies.
const views = `
cache: {syncTimeout: 2m}
drain: 100ms
views:
- {name: mine, namespaces: allowed}
- {name: some, namespaces: allowed, resources: [configmaps, pods]}
- {name: cut, namespaces: allowed, fields: ["metadata.labels"]}
- {name: pods, namespaces: allowed, resources: [pods]}
- {name: configs, namespaces: allowed, resources: [configmaps]}
- {name: whole, fields: ["metadata.labels"]}
`

// These are times for which decisions count.
const (
	long = `
authentication: {anonymous: {enabled: true}, webhook: {cacheTTL: 1h}}
authorization: {webhook: {cacheAuthorizedTTL: 1h, cacheUnauthorizedTTL: 1h}}
`
	short = `
authentication: {webhook: {cacheTTL: 1m}}
authorization: {webhook: {cacheAuthorizedTTL: 12s, cacheUnauthorizedTTL: 2s}}
`
)

// proxyT starts a proxy that reaches the apiserver at a URL.
func (w *world) proxyT(tb testing.TB, upstream, settings string) *proxy {
	tb.Helper()
	return w.proxyAsT(tb, upstream, w.server.Token, settings)
}

// proxyAsT starts a proxy with credentials of its own.
func (w *world) proxyAsT(tb testing.TB, upstream, token, settings string) *proxy {
	tb.Helper()
	p := cluster.ProxyT(tb, cluster.ProxyOptions{
		Kubeconfig: w.server.KubeconfigT(tb, upstream, token), TLS: true,
		Settings: views + settings, Args: []string{"--authentication=delegated"},
	})
	return &proxy{cluster.EndpointT(tb, "proxy", p.URL, "", p.CA), p}
}

// caller is a user with a token.
type caller struct {
	name   string
	token  string
	header http.Header // further headers
}

// as returns the caller's request.
func (c caller) as(r cluster.Request) cluster.Request {
	if c.token != "" {
		r = r.With("Authorization", "Bearer "+c.token)
	}
	for name, values := range c.header {
		for _, value := range values {
			r = r.With(name, value)
		}
	}
	return r
}

func (w *world) adminCaller() caller { return caller{name: "admin", token: w.server.Token} }
