//go:build verify

package chart

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common/util"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// factors are groups of values. A combination takes one level of each. The first level is the
// chart's default.
var factors = map[string][]string{
	"kind":     {``, `kind: DaemonSet`},
	"replicas": {``, `replicaCount: 1`, `autoscaling: {enabled: true}`},
	"tls": {
		``, `tls: {ipAddresses: [10.0.0.9], clusterDomain: example.local}`, `tls: {mode: certManager}`,
		`tls: {mode: certManager, certManager: {issuerRef: {name: a, kind: ClusterIssuer, group: cert-manager.io}}}`,
		`tls: {mode: secret, secret: {name: certificate}}`,
	},
	"naming": {``, `fullnameOverride: apicache`, `{nameOverride: front, commonLabels: {team: a}}`},
	"service": {
		``, `service: {type: NodePort, externalTrafficPolicy: Local, labels: {a: b}}`,
		`service: {type: LoadBalancer, loadBalancerClass: example.com/a, loadBalancerSourceRanges: [10.0.0.0/8]}`,
		`service: {internalTrafficPolicy: Local, sessionAffinity: ClientIP}`, `service: {enabled: false}`,
	},
	"rights": {
		``, `cacheEverything: true`, `{cachedResources: [pods, secrets], config: {cache: {resources: [{name: secrets}]}}}`,
		`rbac: {impersonation: {enabled: true, groups: [developers]}}`, `{rbac: {create: false}, serviceAccount: {create: false, name: other}}`,
	},
	"monitoring": {
		``, `monitoring: {podMonitor: {enabled: true, namespace: kube-public, additionalLabels: {a: b}}, prometheusRule: {enabled: true}}`,
		`monitoring: {serviceMonitor: {enabled: true, honorLabels: true}, dashboard: {enabled: true, namespace: kube-public}}`,
	},
	"network": {``, `networkPolicy: {enabled: true, clients: [{namespaceSelector: {}}]}`},
	"budget":  {``, `podDisruptionBudget: {enabled: false}`, `podDisruptionBudget: {minAvailable: 50%}`},
	"flow":    {``, `flowSchema: {enabled: false}`, `flowSchema: {priorityLevel: {create: false, name: workload-high}}`},
	"pods": {
		``, `{topologySpreadConstraints: [], podAnnotations: {a: b}, tolerations: [{operator: Exists}], priorityClassName: system-node-critical}`,
		`{initContainers: [{name: first, image: a}], extraContainers: [{name: beside, image: b}], hostAliases: [{ip: 10.0.0.3, hostnames: [a]}], runtimeClassName: runc}`,
	},
	"openshift": {``, `global: {compatibility: {openshift: {adaptSecurityContext: force}}}`},
	"others":    {``, `{extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-extra"}}], deploymentAnnotations: {a: b}}`},
	"config":    {``, `config: {goawayChance: 0, listen: ":8443"}`, `config: {authentication: {anonymous: {enabled: true}}, upstream: {servers: ["https://10.0.0.1:6443"]}}`},
	"tests":     {``, `tests: {enabled: false}`},
}

// combination is the chosen level of each factor.
type combination map[string]int

// valid reports whether the chart takes the combination.
func (c combination) valid() bool {
	daemonSet := c["kind"] == 1
	return !daemonSet || c["replicas"] == 0 && c["budget"] < 2
}

func (c combination) values(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, name := range factorNames() {
		if level := factors[name][c[name]]; level != "" {
			all = util.CoalesceTables(all, parseValues(t, level))
		}
	}
	return all
}

func factorNames() (names []string) {
	for name := range factors {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// draw returns a valid combination that depends on the seed and the names.
func draw(names ...string) combination {
	for attempt := 0; ; attempt++ {
		c := combination{}
		for name, levels := range factors {
			c[name] = cluster.Draw(len(levels), append(names, name, strconv.Itoa(attempt))...)
		}
		if c.valid() {
			return c
		}
	}
}

// Each combination of values is installed, upgraded twice and uninstalled. The proxies get their
// certificate with the rights of the chart. The CA stays the same, no private key is in Helm's
// history, and nothing is left.
func TestMatrix(t *testing.T) {
	const combinations = 50
	w := sharedWorld(t)
	for n := range combinations {
		t.Run(fmt.Sprintf("%02d", n), func(t *testing.T) {
			t.Parallel()
			w.lives(t, fmt.Sprintf("matrix-%02d-x", n))
		})
	}
}

// lives installs a combination, upgrades it to two others and uninstalls it.
func (w *world) lives(t *testing.T, ns string) {
	t.Helper()
	r, first := w.release(t, ns), draw("first", ns)
	t.Log(first)
	installed := r.install(t, first.values(t))
	ca := r.proxies(t, installed)
	versions := []map[string]any{first.values(t), next(ns, first).values(t)}
	// The certificate gets another name, and everything gets a label.
	versions[0] = util.CoalesceTables(parseValues(t, `{tls: {dnsNames: [watchproxy.example.com, "*.example.com"]}, commonLabels: {version: second}}`), versions[0])
	for _, values := range versions {
		if again := r.proxies(t, r.upgrade(t, values)); (again == nil) != (ca == nil) || ca != nil && !again.Equal(ca) {
			t.Error("another CA")
		}
	}
	r.hasNoKeys(t)
	r.uninstall(t)
}

// next draws a combination to which a release can be upgraded: with the same names and the same
// source of its certificate.
func next(ns string, before combination) combination {
	for attempt := 0; ; attempt++ {
		c := draw("next", ns, strconv.Itoa(attempt))
		for _, name := range []string{"naming", "tls"} {
			c[name] = before[name]
		}
		if c.valid() {
			return c
		}
	}
}

func (c combination) String() string {
	var all []string
	for name, level := range c {
		all = append(all, factors[name][level])
	}
	slices.Sort(all)
	return strings.TrimSpace(strings.Join(all, "\n"))
}
