package access

import (
	"context"
	"fmt"
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
	return w.startFront(t, w.api.URL, user, settings).warmed(t, w)
}

// startFront starts a proxy that reaches the apiserver at the URL upstream.
func (w *world) startFront(t *testing.T, upstream, user, settings string) *front {
	t.Helper()
	if *self {
		return &front{server: newServer(t, "apiserver again", w.api.URL, w.api.CA)}
	}
	return frontOf(t, w.frontOptions(t, upstream, user, settings))
}

func (w *world) frontOptions(t *testing.T, upstream, user, settings string) cluster.ProxyOptions {
	t.Helper()
	return cluster.ProxyOptions{
		Kubeconfig: w.api.KubeconfigT(t, upstream, tokenOf(user)), TLS: true,
		Settings: "drain: 100ms\n" + settings, Args: []string{"--authentication=delegated"},
	}
}

func frontOf(t *testing.T, options cluster.ProxyOptions) *front {
	t.Helper()
	proxy := cluster.ProxyT(t, options)
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

// withAnonymous are the settings of a proxy that lets anonymous clients in.
const withAnonymous = "authentication: {anonymous: {enabled: true}}\n"

// expect sends a request and fails if the answer has another status.
func (f *front) expect(ctx context.Context, c *caller, r request, status int) error {
	got, err := f.ask(ctx, c, r)
	if err == nil && got.status != status {
		err = fmt.Errorf("%s: %.80s: %d instead of %d: %.300s", c.name, r.target, got.status, status, got.body)
	}
	return err
}

// fromCache returns the number of requests that the proxy has answered from its cache. A request
// counts before its answer is written.
func (f *front) fromCache(t *testing.T) int {
	t.Helper()
	if f.proxy == nil {
		return 0
	}
	return int(f.proxy.MetricsT(t).Sum("watchproxy_requests_total", `source="cache"`, `code="200"`))
}
