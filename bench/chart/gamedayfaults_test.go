//go:build verify

package chart

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// gameDay has the faults by name.
var gameDay = map[string]fault{
	"the apiserver is gone": {
		[]string{"WatchproxyUpstreamDown"},
		[]string{"WatchproxyUpstreamServerUnusable"},
		`"upstream is lost"`,
		func(t *testing.T, w *world) situation {
			p, way := w.proxyBehindRelay(t, "")
			return situation{p, way.Cut, nil}
		},
	},
	"one of two apiservers is gone": {
		[]string{"WatchproxyUpstreamServerUnusable"},
		nil, `"upstream server is no longer used"`,
		func(t *testing.T, w *world) situation {
			other := cluster.RelayT(t, w.api.Address)
			p, _ := w.proxyBehindRelay(t, fmt.Sprintf("upstream: {servers: [%q, %q]}\n", w.api.URL, "https://"+other.Address()))
			return situation{p, other.Cut, nil}
		},
	},
	"nothing comes from the apiserver": {
		[]string{"WatchproxyFeedStale"},
		[]string{"WatchproxyUpstreamDown", "WatchproxyUpstreamServerUnusable"},
		`"upstream is lost"`,
		func(t *testing.T, w *world) situation {
			p, way := w.proxyBehindRelay(t, "")
			w.keep(t, p, "configmaps")
			t.Cleanup(way.Thaw)
			return situation{p, way.Freeze, func() { w.touch(t) }}
		},
	},
	"reads fail": {
		[]string{"WatchproxyErrors", "WatchproxyErrorsBurnFast"},
		[]string{"WatchproxyErrorsBurnSlow", "WatchproxyUpstreamDown", "WatchproxyUpstreamServerUnusable", "WatchproxyFeedStale"},
		`"request failed"`,
		func(t *testing.T, w *world) situation {
			p, way := w.proxyBehindRelay(t, "cache: {onUpstreamLoss: fail}\n")
			w.keep(t, p, "configmaps")
			return situation{p, way.Cut, func() {
				w.touch(t)
				for range 10 {
					ask(t, p, "/api/v1/namespaces/default/configmaps?resourceVersion=0", "")
				}
			}}
		},
	},
	"the configuration is broken": {
		[]string{"WatchproxyConfigRefused"},
		nil, `"configuration is not reloaded, all stays as it was","file":`,
		func(t *testing.T, w *world) situation {
			p, _ := w.proxyBehindRelay(t, "drain: 1s\n")
			return situation{p, func() { must(t, p.Configure("cache: {noSuchField: 1}\n")) }, nil}
		},
	},
	"the proxy does not start": {
		[]string{"WatchproxyDown"},
		nil, "cache.noSuchField: Forbidden: unknown field",
		func(t *testing.T, w *world) situation {
			p, _ := w.proxyBehindRelay(t, "drain: 1s\n")
			return situation{p, func() {
				must(t, p.Stop())
				must(t, p.Configure("cache: {noSuchField: 1}\n"))
				if err := p.Start(t.Context()); err == nil {
					t.Error("the proxy starts")
				}
			}, nil}
		},
	},
	"the proxy may not review": {
		[]string{"WatchproxyReviewsFail"},
		[]string{"WatchproxyErrors", "WatchproxyErrorsBurnFast", "WatchproxyErrorsBurnSlow"},
		`cannot create resource \"tokenreviews\"`,
		func(t *testing.T, w *world) situation {
			p := w.proxyWithRights(t, `{cachedResources: [pods], persistence: {type: none}}`)
			asked := 0
			return situation{p, func() { w.revoke(t) }, func() {
				for range 5 {
					asked++
					ask(t, p, "/api/v1/pods", fmt.Sprintf("of-nobody-%d", asked))
				}
			}}
		},
	},
	"too many connections": {
		[]string{"WatchproxyConnectionsRefused"},
		[]string{"WatchproxyRequestsLimited"},
		`"connections beyond the limit are refused"`,
		func(t *testing.T, w *world) situation {
			p, _ := w.proxyBehindRelay(t, "limits: {maxConnections: 8}\n")
			most := 0
			var open []net.Conn
			t.Cleanup(func() {
				for _, c := range open {
					_ = c.Close()
				}
			})
			return situation{p, func() { most = 200 }, func() {
				for range most {
					if c, err := net.Dial("tcp", p.Address()); err == nil {
						open = append(open, c)
					}
				}
			}}
		},
	},
	"too many watches": {
		[]string{"WatchproxyRequestsLimited"},
		nil, `"request refused"`,
		func(t *testing.T, w *world) situation {
			p, _ := w.proxyBehindRelay(t, "limits: {maxWatchesPerIdentity: 1}\nauthentication: {mode: delegated}\n")
			more := 0
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			go hold(ctx, p, "/api/v1/namespaces/default/configmaps?watch=1", w.api.Token)
			return situation{p, func() { more = 20 }, func() {
				w.touch(t)
				for range more {
					ask(t, p, "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1", w.api.Token)
				}
			}}
		},
	},
	"caches cannot be saved": {
		[]string{"WatchproxySavesFail"},
		nil, `"cache could not be saved"`,
		func(t *testing.T, w *world) situation {
			dir := filepath.Join(t.TempDir(), "caches")
			p, _ := w.proxyBehindRelay(t, fmt.Sprintf("cache: {persistence: {directory: %q, interval: 1s}}\n", dir))
			w.keep(t, p, "configmaps")
			return situation{p, func() {
				must(t, os.RemoveAll(dir))
				must(t, os.WriteFile(dir, nil, 0o600))
			}, func() { w.touch(t) }}
		},
	},
	"audit events cannot be written": {
		[]string{"WatchproxyAuditFails"},
		nil, "Error in audit plugin",
		func(t *testing.T, w *world) situation {
			dir := t.TempDir()
			policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "logs", "audit.log")
			must(t, os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"), 0o600))
			must(t, os.Mkdir(filepath.Dir(log), 0o700))
			// The log is rotated at each megabyte, and then its directory is missing.
			p, _ := w.proxyBehindRelay(t, fmt.Sprintf("audit: {policyFile: %q, logPath: %q, logMode: blocking, logMaxSize: 1}\n", policy, log))
			w.keep(t, p, "configmaps")
			return situation{p, func() {
				must(t, os.RemoveAll(filepath.Dir(log)))
				must(t, os.WriteFile(filepath.Dir(log), nil, 0o600))
			}, func() {
				w.touch(t)
				for range 100 {
					ask(t, p, "/api/v1/namespaces/default/configmaps?resourceVersion=0&labelSelector=none", "")
				}
			}}
		},
	},
	"the serving certificate expires": {
		[]string{"WatchproxyServingCertificateExpiresToday"},
		[]string{"WatchproxyServingCertificateExpires"},
		`"serving certificate expires soon"`,
		func(t *testing.T, w *world) situation {
			p, _ := w.proxyBehindRelay(t, "")
			return situation{p, func() {
				certificate, key := cluster.PEM(w.api.AuthorityT(t).SignT(t, 20*time.Minute, "localhost"))
				must(t, p.ReplaceKey(key))
				must(t, p.ReplaceCertificate(certificate))
			}, nil}
		},
	},
	"memory is short": {
		[]string{"WatchproxyMemoryShort"},
		[]string{"WatchproxyMemoryNearLimit"},
		`"memory budget"`,
		func(t *testing.T, w *world) situation {
			p, _ := w.proxyBehindRelay(t, "memoryBudget: 64Mi\n")
			w.keep(t, p, "configmaps")
			return situation{p, func() { w.fill(t) }, func() { w.touch(t) }}
		},
	},
}

// proxyBehindRelay starts a proxy whose way to the apiserver can be cut.
func (w *world) proxyBehindRelay(t *testing.T, settings string) (*cluster.Proxy, *cluster.Relay) {
	t.Helper()
	way := cluster.RelayT(t, w.api.Address)
	kubeconfig := w.api.KubeconfigT(t, "https://"+way.Address(), w.api.Token)
	return cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, Settings: settings, TLS: true}), way
}

// revoke takes the right to review away from the proxies. [world.grant] gives it back.
func (w *world) revoke(t *testing.T) {
	t.Helper()
	bindings := w.admin.RbacV1().ClusterRoleBindings()
	all, err := bindings.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	found := false
	for _, b := range all.Items {
		if b.RoleRef.Name == "system:auth-delegator" {
			found = true
			must(t, bindings.Delete(t.Context(), b.Name, metav1.DeleteOptions{}))
		}
	}
	if !found {
		t.Fatal("nothing is bound to system:auth-delegator")
	}
}

// fill creates configmaps of 30 MB in all, and removes them at the end.
func (w *world) fill(t *testing.T) {
	t.Helper()
	const each, objects = 900_000, 35
	ns := w.api.NamespaceT(t, "full")
	maps := w.admin.CoreV1().ConfigMaps(ns)
	for i := range objects {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("big-%d", i)}, Data: map[string]string{"x": strings.Repeat("x", each)}}
		_, err := maps.Create(t.Context(), o, metav1.CreateOptions{})
		must(t, err)
	}
	t.Cleanup(func() {
		if err := maps.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// keep makes the proxy cache a resource.
func (w *world) keep(t *testing.T, p *cluster.Proxy, resource string) {
	t.Helper()
	ask(t, p, "/api/v1/"+resource+"?resourceVersion=0&limit=1", "")
	cluster.Eventually(t, "the resource is cached", func() bool { return p.CachedT(t, resource) })
}

// touch writes a configmap.
func (w *world) touch(t *testing.T) {
	t.Helper()
	maps := w.admin.CoreV1().ConfigMaps("default")
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: cluster.UniqueName("touched")}}
	if _, err := maps.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, maps.Delete(t.Context(), o.Name, metav1.DeleteOptions{}))
}

// ask sends a request to a proxy. The answer does not matter.
func ask(t *testing.T, p *cluster.Proxy, path, token string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	hold(ctx, p, path, token)
}

// hold sends a request and reads its answer until ctx ends.
func hold(ctx context.Context, p *cluster.Proxy, path, token string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, http.NoBody)
	if err != nil {
		panic(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Close = true
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the test replaces the certificate
	if resp, err := client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
