package access

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// front is a proxy that authenticates its clients.
type front struct {
	*server
	proxy *cluster.Proxy
}

// openFront lets anonymous clients in, closedFront does not. Tests that only need an ordinary proxy
// share them.
var openFront, closedFront = sharedFront(withAnonymous), sharedFront("")

func sharedFront(settings string) func(testing.TB) *front {
	return cluster.Shared(func(tb testing.TB) *front {
		tb.Helper()
		return sharedWorld(tb).front(tb, proxyUser, settings)
	})
}

// front starts a proxy with the given user's credentials and settings. It ends with the test.
func (w *world) front(tb testing.TB, user, settings string) *front {
	tb.Helper()
	return w.startFront(tb, w.api.URL, user, settings).warmed(tb, w)
}

// startFront starts a proxy that reaches the apiserver at the URL upstream.
func (w *world) startFront(tb testing.TB, upstream, user, settings string, args ...string) *front {
	tb.Helper()
	proxy := cluster.ProxyT(tb, cluster.ProxyOptions{
		Kubeconfig: w.api.KubeconfigT(tb, upstream, tokenOf(user)), TLS: true,
		Settings: "drain: 100ms\n" + settings, Args: append(args, "--authentication=delegated"),
	})
	return &front{server: newServer(tb, "proxy", proxy.URL, proxy.CA), proxy: proxy}
}

// warmed performs one successful impersonation, because until then the proxy refuses impersonation
// with other words.
func (f *front) warmed(tb testing.TB, w *world) *front {
	tb.Helper()
	if got := f.must(tb, w.callers["certificate as reader"], request{target: "/version"}); got.status != ok {
		tb.Fatalf("%d %s", got.status, got.body)
	}
	return f
}

// withAnonymous are the settings of a proxy that lets anonymous clients in.
const withAnonymous = "authentication: {anonymous: {enabled: true}}\n"

// fromCache returns the number of requests that the proxy has answered from its cache. A request
// counts before its answer is written.
func (f *front) fromCache(t *testing.T) int {
	t.Helper()
	return int(f.proxy.MetricsT(t).Sum("watchproxy_requests_total", `source="cache"`, `code="200"`))
}
