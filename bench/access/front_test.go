package access

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// front is a proxy that authenticates its clients. With -self it is the apiserver.
type front struct {
	*server
	proxy *cluster.Proxy // nil with -self
}

// front starts a proxy with the given user's credentials and settings. It ends with the test.
func (w *world) front(t *testing.T, user, settings string) *front {
	t.Helper()
	return w.startFront(t, w.api.URL, user, settings, false).warmed(t, w)
}

// lean is front without the race detector, for tests that measure memory.
func (w *world) lean(t *testing.T) *front {
	t.Helper()
	return w.startFront(t, w.api.URL, proxyUser, "", true).warmed(t, w)
}

// startFront starts a proxy that reaches the apiserver at the URL upstream.
func (w *world) startFront(t *testing.T, upstream, user, settings string, noRace bool) *front {
	t.Helper()
	if *self {
		return &front{server: newServer(t, "apiserver again", w.api.URL, w.api.CA)}
	}
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: w.api.KubeconfigT(t, upstream, tokenOf(user)), TLS: true, NoRace: noRace,
		Settings: "drain: 100ms\n" + settings, Args: []string{"--authentication=delegated"},
	})
	return &front{server: newServer(t, "proxy", proxy.URL, proxy.CA), proxy: proxy}
}

// warmed performs one successful impersonation, because until then the proxy refuses impersonation
// with other words.
func (f *front) warmed(t *testing.T, w *world) *front {
	t.Helper()
	if got := f.must(t, w.callers["certificate as reader"], request{target: "/version"}); got.status != ok {
		t.Fatalf("%d %s", got.status, got.body)
	}
	return f
}

// Settings of proxies.
const (
	withAnonymous = "authentication: {anonymous: {enabled: true}}\n"
	shortLived    = `
authentication: {webhook: {cacheTTL: 1s}}
authorization: {webhook: {cacheAuthorizedTTL: 1s, cacheUnauthorizedTTL: 1s}, watchRecheckInterval: 1s}
`
)

// fromCache returns the number of requests that the proxy has answered from its cache.
func (f *front) fromCache(t *testing.T) int {
	t.Helper()
	if f.proxy == nil {
		return 0
	}
	return int(f.proxy.MetricsT(t).Sum("watchproxy_requests_total", `source="cache"`, `code="200"`))
}
