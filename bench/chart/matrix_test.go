//go:build verify

package chart

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common/util"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	"naming":      {``, `fullnameOverride: apicache`, `{nameOverride: front, commonLabels: {team: a}}`},
	"persistence": {``, `persistence: {type: none}`, `persistence: {type: emptyDir, size: 1Gi}`, `persistence: {type: pvc, size: 1Gi, storageClass: fast}`},
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
	daemonSet, claim := c["kind"] == 1, c["persistence"] == 3
	if daemonSet {
		return c["replicas"] == 0 && c["budget"] < 2 && !claim
	}
	return !claim || c["replicas"] == 1
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

// pairs returns all pairs of levels in the combination.
func (c combination) pairs() (all []string) {
	names := factorNames()
	for i, a := range names {
		for _, b := range names[i+1:] {
			all = append(all, fmt.Sprintf("%s %d, %s %d", a, c[a], b, c[b]))
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

// drawAll returns combinations that cover as many pairs of levels as a greedy choice among drawn
// candidates finds.
func drawAll(n int) (all []combination, covered map[string]bool) {
	const candidates = 50
	covered = map[string]bool{}
	for len(all) < n {
		var best combination
		most := -1
		for candidate := range candidates {
			c, fresh := draw("combination", strconv.Itoa(len(all)), strconv.Itoa(candidate)), 0
			for _, pair := range c.pairs() {
				if !covered[pair] {
					fresh++
				}
			}
			if fresh > most {
				best, most = c, fresh
			}
		}
		for _, pair := range best.pairs() {
			covered[pair] = true
		}
		all = append(all, best)
	}
	return all, covered
}

// Each combination of values is installed, upgraded twice and uninstalled. The proxies get their
// certificate with the rights of the chart. The CA stays the same, no private key is in Helm's
// history, and nothing is left.
func TestMatrix(t *testing.T) {
	const combinations, leastPairs = 50, 650
	w := sharedWorld(t)
	w.kinds(t)
	all, covered := drawAll(combinations)
	t.Logf("%d pairs of values are covered", len(covered))
	if len(covered) < leastPairs {
		t.Errorf("only %d pairs of values are covered", len(covered))
	}
	before := w.everything(t)
	t.Run("releases", func(t *testing.T) {
		for n, first := range all {
			t.Run(fmt.Sprintf("%02d", n), func(t *testing.T) {
				t.Parallel()
				w.lives(t, fmt.Sprintf("matrix-%02d-x", n), first)
			})
		}
	})
	for left := range w.everything(t) {
		if !before[left] && !strings.HasPrefix(left, "Namespace /matrix-") { // Helm does not delete namespaces
			t.Errorf("%s is left", left)
		}
	}
}

// lives installs a combination, upgrades it to two others and uninstalls it.
func (w *world) lives(t *testing.T, ns string, first combination) {
	t.Helper()
	r := w.release(t, ns)
	text := first.describe()
	installed := r.install(t, first.values(t))
	ca := r.proxies(t, installed)
	versions := []map[string]any{first.values(t), next(ns, first).values(t)}
	// The certificate gets another name, and everything gets a label.
	versions[0] = util.CoalesceTables(parseValues(t, `{tls: {dnsNames: [watchproxy.example.com, "*.example.com"]}, commonLabels: {version: second}}`), versions[0])
	for _, values := range versions {
		if again := r.proxies(t, r.upgrade(t, values)); (again == nil) != (ca == nil) || ca != nil && !again.Equal(ca) {
			t.Errorf("%s: another CA", text)
		}
	}
	r.hasNoKeys(t)
	r.uninstall(t)
	if t.Failed() {
		t.Log(text)
	}
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

func (c combination) describe() string {
	var all []string
	for _, name := range factorNames() {
		if level := factors[name][c[name]]; level != "" {
			all = append(all, level)
		}
	}
	return strings.Join(all, "\n")
}

// everything returns the names of all objects of all kinds in the cluster, except for those that
// the apiserver itself makes as time passes.
func (w *world) everything(t *testing.T) map[string]bool {
	t.Helper()
	lists, err := w.admin.Discovery().ServerPreferredResources()
	must(t, err)
	all := map[string]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains([]string{"leases", "events", "componentstatuses"}, r.Name) {
				continue
			}
			found, err := w.dynamic.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			for _, o := range found.Items {
				if o.GetDeletionTimestamp() == nil {
					all[r.Kind+" "+o.GetNamespace()+"/"+o.GetName()] = true
				}
			}
		}
	}
	return all
}
