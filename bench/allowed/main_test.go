package allowed

import (
	"net/http"
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
	marks   marks
}

var sharedWorld = cluster.Shared(func(tb testing.TB) *world {
	tb.Helper()
	w := &world{server: cluster.APIServerT(tb, cluster.Options{Users: tokenFile(), Flags: []string{"--etcd-compaction-interval=0"}})}
	w.api = cluster.EndpointT(tb, "apiserver", w.server.URL, "", w.server.CA)
	w.admin, w.dynamic = w.server.Client(), w.server.Dynamic()
	cluster.MustT(tb, w.prepare(tb.Context()))
	return w
})

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

// These proxies are for tests that need none of their own.
var forgetful, mindful = sharedProxy(short), sharedProxy(long)

func sharedProxy(settings string) func(testing.TB) *proxy {
	return cluster.Shared(func(tb testing.TB) *proxy {
		tb.Helper()
		w := sharedWorld(tb)
		return w.proxyT(tb, w.server.URL, settings)
	})
}

// proxyT starts a proxy that reaches the apiserver at a URL.
func (w *world) proxyT(tb testing.TB, upstream, settings string) *proxy {
	tb.Helper()
	p := cluster.ProxyT(tb, cluster.ProxyOptions{
		Kubeconfig: w.server.KubeconfigT(tb, upstream, w.server.Token), TLS: true,
		Settings: views + settings, Args: []string{"--authentication=delegated"},
	})
	return &proxy{cluster.EndpointT(tb, "proxy", p.URL, "", p.CA), p}
}

// caller is a user with a token.
type caller struct {
	name  string
	token string
	actor string // the user whom the caller impersonates
}

func user(name string) caller { return caller{name: name, token: tokenOf(name)} }

func (w *world) adminCaller() caller { return caller{name: "admin", token: w.server.Token} }

// acting returns the caller with another user's name to act as.
func (c caller) acting(user string) caller {
	return caller{name: c.name + " as " + user, token: c.token, actor: user}
}

// as returns the caller's request.
func (c caller) as(r cluster.Request) cluster.Request {
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.actor != "" {
		r.Header.Set("Impersonate-User", c.actor)
	}
	return r
}
