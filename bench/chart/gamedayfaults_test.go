//go:build verify

package chart

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const configMaps = "/api/v1/namespaces/default/configmaps"

// gameDay has the faults by name.
var gameDay = map[string]fault{
	"the apiserver is gone": {
		[]string{"WatchproxyUpstreamDown"},
		[]string{"WatchproxyUpstreamServerUnusable"},
		`"upstream is lost"`,
		func(n *night) {
			n.start("")
			n.inject = n.way.Cut
		},
	},
	"one of two apiservers is gone": {
		[]string{"WatchproxyUpstreamServerUnusable"},
		nil, `"upstream server is no longer used"`,
		func(n *night) {
			other := cluster.RelayT(n, n.w.api.Address)
			n.start(fmt.Sprintf("upstream: {servers: [%q, %q]}\n", n.w.api.URL, "https://"+other.Address()))
			n.inject = other.Cut
		},
	},
	"nothing comes from the apiserver": {
		[]string{"WatchproxyFeedStale"},
		[]string{"WatchproxyUpstreamDown", "WatchproxyUpstreamServerUnusable"},
		`"upstream is lost"`,
		func(n *night) {
			n.start("")
			n.keep()
			n.inject = n.way.Freeze
			n.Cleanup(n.way.Thaw)
		},
	},
	"reads fail": {
		[]string{"WatchproxyErrors", "WatchproxyErrorsBurnFast"},
		[]string{"WatchproxyErrorsBurnSlow", "WatchproxyUpstreamDown", "WatchproxyUpstreamServerUnusable", "WatchproxyFeedStale"},
		`"request failed"`,
		func(n *night) {
			n.start("cache: {onUpstreamLoss: fail}\n")
			n.keep()
			n.inject = n.way.Cut
			n.load = func() { n.ask(10, configMaps+"?resourceVersion=0", "") }
		},
	},
	"the configuration is broken": {
		[]string{"WatchproxyConfigRefused"},
		nil, `"configuration is not reloaded, all stays as it was","file":`,
		func(n *night) {
			n.start("drain: 1s\n")
			n.inject = func() { must(n.T, n.proxy.Configure("cache: {noSuchField: 1}\n")) }
		},
	},
	"the proxy does not start": {
		[]string{"WatchproxyDown"},
		nil, "cache.noSuchField: Forbidden: unknown field",
		func(n *night) {
			n.start("drain: 1s\n")
			n.inject = func() {
				must(n.T, n.proxy.Stop())
				must(n.T, n.proxy.Configure("cache: {noSuchField: 1}\n"))
				if err := n.proxy.Start(n.Context()); err == nil {
					n.Error("the proxy starts")
				}
			}
		},
	},
	"the proxy may not review": {
		[]string{"WatchproxyReviewsFail"},
		[]string{"WatchproxyErrors", "WatchproxyErrorsBurnFast", "WatchproxyErrorsBurnSlow"},
		`cannot create resource \"tokenreviews\"`,
		func(n *night) {
			n.proxy = n.w.proxyWithRights(n.T, `{cachedResources: [pods]}`)
			n.inject = n.revoke
			n.load = func() { n.ask(5, "/api/v1/pods", cluster.UniqueName("of-nobody")) }
		},
	},
	"too many connections": {
		[]string{"WatchproxyConnectionsRefused"},
		[]string{"WatchproxyRequestsLimited"},
		`"connections beyond the limit are refused"`,
		func(n *night) {
			n.start("limits: {maxConnections: 8}\n")
			n.inject = func() {}
			n.load = func() {
				const connections = 200
				for range connections {
					if c, err := net.Dial("tcp", n.proxy.Address()); err == nil {
						n.Cleanup(func() { _ = c.Close() })
					}
				}
			}
		},
	},
	"too many watches": {
		[]string{"WatchproxyRequestsLimited"},
		nil, `"request refused"`,
		func(n *night) {
			n.start("limits: {maxWatchesPerIdentity: 1}\nauthentication: {mode: delegated}\n")
			first, err := n.proxy.Client(n.w.api.Token).CoreV1().ConfigMaps(metav1.NamespaceDefault).Watch(n.Context(), metav1.ListOptions{})
			must(n.T, err)
			n.Cleanup(first.Stop)
			n.inject = func() {}
			n.load = func() { n.ask(20, configMaps+"?watch=1&timeoutSeconds=1", n.w.api.Token) }
		},
	},
	"audit events cannot be written": {
		[]string{"WatchproxyAuditFails"},
		nil, "Error in audit plugin",
		func(n *night) {
			dir := n.TempDir()
			policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "logs", "audit.log")
			must(n.T, os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"), 0o600))
			// The log is rotated at each megabyte, and then its directory is missing.
			n.start(fmt.Sprintf("audit: {policyFile: %q, logPath: %q, logMode: blocking, logMaxSize: 1}\n", policy, log))
			n.keep()
			n.inject = func() { n.obstruct(filepath.Dir(log)) }
			n.load = func() { n.ask(100, configMaps+"?resourceVersion=0&labelSelector=none", "") }
		},
	},
	"the serving certificate expires": {
		[]string{"WatchproxyServingCertificateExpiresToday"},
		[]string{"WatchproxyServingCertificateExpires"},
		`"serving certificate expires soon"`,
		func(n *night) {
			n.start("")
			n.inject = func() {
				certificate, key := cluster.PEM(n.w.api.AuthorityT(n).SignT(n, 20*time.Minute, "localhost"))
				must(n.T, n.proxy.ReplaceKey(key))
				must(n.T, n.proxy.ReplaceCertificate(certificate))
			}
		},
	},
	"memory is short": {
		[]string{"WatchproxyMemoryShort"},
		[]string{"WatchproxyMemoryNearLimit"},
		`"memory budget"`,
		func(n *night) {
			n.start("memoryBudget: 64Mi\n")
			n.keep()
			n.inject = n.fill
		},
	},
}

// keep makes the proxy cache configmaps.
func (n *night) keep() {
	n.Helper()
	n.ask(1, "/api/v1/configmaps?resourceVersion=0&limit=1", "")
	cluster.Eventually(n, "the resource is cached", func() bool { return n.proxy.CachedT(n, "configmaps") })
}

// ask sends a request several times. The answers do not matter.
func (n *night) ask(times int, target, token string) {
	n.Helper()
	e := cluster.EndpointT(n, "proxy", n.proxy.URL, token, n.proxy.CA)
	for range times {
		_, _ = e.Ask(n.Context(), cluster.Get(target))
	}
}

// obstruct replaces a directory by a file.
func (n *night) obstruct(dir string) {
	n.Helper()
	must(n.T, os.RemoveAll(dir))
	must(n.T, os.WriteFile(dir, nil, 0o600))
}

// revoke takes the right to review away from the proxies. [world.grant] gives it back.
func (n *night) revoke() {
	n.Helper()
	bindings := n.w.admin.RbacV1().ClusterRoleBindings()
	all, err := bindings.List(n.Context(), metav1.ListOptions{})
	must(n.T, err)
	for _, b := range all.Items {
		if b.RoleRef.Name == "system:auth-delegator" {
			must(n.T, bindings.Delete(n.Context(), b.Name, metav1.DeleteOptions{}))
		}
	}
}

// fill creates configmaps of 30 MB in all, and removes them at the end.
func (n *night) fill() {
	n.Helper()
	const each, objects = 900_000, 35
	maps := n.w.admin.CoreV1().ConfigMaps(n.w.api.NamespaceT(n, cluster.UniqueName("full")))
	for i := range objects {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("big-%d", i)}, Data: map[string]string{"x": strings.Repeat("x", each)}}
		_, err := maps.Create(n.Context(), o, metav1.CreateOptions{})
		must(n.T, err)
	}
	n.Cleanup(func() {
		if err := maps.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			n.Error(err)
		}
	})
}
