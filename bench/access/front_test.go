package access

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/config"
)

// front is a proxy that authenticates its clients, or with -self the apiserver in its place.
type front struct {
	*server
	proxy *cluster.Proxy // nil with -self
}

// front starts a proxy as a user with the given settings. It ends with the test.
func (w *world) front(t *testing.T, user, settings string) *front {
	t.Helper()
	return w.frontOf(t, "", user, settings)
}

// frontOf starts a proxy of a binary; empty: with the race detector if the test has it.
func (w *world) frontOf(t *testing.T, binary, user, settings string) *front {
	t.Helper()
	return w.startFront(t, binary, w.api.URL, user, settings).warmed(t, w)
}

// frontAt starts a proxy whose upstream has an address of its own.
func (w *world) frontAt(t *testing.T, upstream, user, settings string) *front {
	t.Helper()
	return w.startFront(t, "", upstream, user, settings).warmed(t, w)
}

func (w *world) startFront(t *testing.T, binary, upstream, user, settings string) *front {
	t.Helper()
	if *self {
		f := &front{server: newServer("apiserver again", w.api.URL, w.api.CA)}
		t.Cleanup(f.close)
		return f
	}
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "config.yaml")
	if err := w.api.WriteKubeconfigAt(kubeconfig, upstream, tokenOf(user)); err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("apiVersion: %s\nkind: %s\ndrain: 100ms\n", config.APIVersion, config.Kind)
	if err := os.WriteFile(file, []byte(head+settings), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{
		Binary: binary, Kubeconfig: kubeconfig, TLS: true, Args: []string{"--authentication=delegated", "--config", file},
	})
	f := &front{server: newServer("proxy", proxy.URL, proxy.CA), proxy: proxy}
	t.Cleanup(f.close)
	return f
}

// warmed has somebody impersonate: it is refused in other words to those who never succeeded with it.
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

// fromCache counts what the proxy's cache has answered to those who may read it.
func (f *front) fromCache(t *testing.T) int {
	t.Helper()
	if f.proxy == nil {
		return 0
	}
	m, err := f.proxy.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(m.Sum("watchproxy_requests_total", `source="cache"`, `code="200"`))
}
