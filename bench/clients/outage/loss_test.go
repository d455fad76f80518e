package outage

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Upstream is lost in two ways: connections break, or they stay open and silent. Reads of any state
// continue with a warning that says how stale they may be, or fail after cache.maxStaleness.
// Reads of the most recent state fail with a Status. When upstream is back, everything works
// again, without another read of the state.
func TestUpstreamLost(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	way := cluster.RelayT(t, w.API.Address)
	kubeconfig := w.API.KubeconfigT(t, "https://"+way.Address(), w.API.Token)
	var proxies []*cluster.Proxy
	start := func(settings string) *cluster.Endpoint {
		p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, Settings: settings, TLS: true})
		proxies = append(proxies, p)
		return cluster.EndpointT(t, settings, p.URL, "", p.CA)
	}
	serving, failing := start(""), start("cache: {maxStaleness: 1ms}\n")
	both := []*cluster.Endpoint{serving, failing}
	const old, recent = "/api/v1/configmaps?resourceVersion=0", "/api/v1/configmaps"
	well := func(e *cluster.Endpoint) bool {
		for _, target := range []string{old, recent} {
			if got := e.GetT(t, target, nil); got.Status != http.StatusOK || got.Header.Get("Warning") != "" {
				return false
			}
		}
		return true
	}
	for what, lose := range map[string]func() (back func()){
		"cut": func() func() {
			way.Cut()
			return way.Mend
		},
		"silent": func() func() {
			way.Freeze()
			return way.Thaw
		},
	} {
		t.Run(what, func(t *testing.T) {
			for _, e := range both {
				cluster.Eventually(t, e.Name, func() bool { return well(e) })
			}
			back := lose()
			defer func() {
				back()
				for _, e := range both {
					cluster.Eventually(t, e.Name+": to be well again", func() bool { return well(e) })
				}
			}()
			for _, e := range both {
				refused(t, e, recent) // this read shows the proxy that upstream does not answer
			}
			cluster.Eventually(t, "a warning", func() bool {
				got := serving.GetT(t, old, nil)
				if got.Status != http.StatusOK {
					t.Fatalf("%d %s", got.Status, got.Body)
				}
				return strings.HasPrefix(got.Header.Get("Warning"), `299 - "watchproxy has not followed the apiserver for `)
			})
			cluster.Eventually(t, "a refusal", func() bool { return failing.GetT(t, old, nil).Status != http.StatusOK })
			refused(t, failing, old)
			targets := []string{recent, recent + "?watch=1", recent + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"}
			if what == "cut" { // of a silent server, a forwarded request learns only by its timeout
				targets = append(targets,
					"/version",
					"/api/v1/namespaces/default/configmaps/none",
					"/apis/apps/v1/deployments?resourceVersion=0", // no client has requested these before
					"/api/v1/secrets?resourceVersion=0",
				)
			}
			for _, e := range both {
				for _, target := range targets {
					refused(t, e, target)
				}
			}
			told(t, proxies)
		})
	}
	for _, p := range proxies {
		cluster.Eventually(t, "each line about a loss is followed by one about the return", func() bool {
			log := p.Log()
			lost, back := strings.Index(log, `"msg":"upstream is lost"`), strings.Index(log, `"msg":"upstream is back"`)
			return lost >= 0 && back > lost && strings.Count(log, `"msg":"upstream is lost"`) == strings.Count(log, `"msg":"upstream is back"`)
		})
	}
	for _, e := range both {
		var list metav1.List
		if err := json.Unmarshal(e.GetT(t, recent, nil).Body, &list); err != nil {
			t.Error(err)
		}
	}
}

// told checks what proxies tell of a loss on their admin addresses.
func told(t *testing.T, proxies []*cluster.Proxy) {
	t.Helper()
	for _, p := range proxies {
		cluster.Eventually(t, "the metrics tell of the loss", func() bool {
			return p.MetricsT(t).Sum("watchproxy_upstream_server_usable") == 0
		})
		if got := p.AdminT(t, "/readyz"); got.Status != http.StatusOK {
			t.Errorf("/readyz is %d", got.Status)
		}
		if got := p.AdminT(t, "/status"); !strings.Contains(string(got.Body), `"resource": "configmaps"`) {
			t.Errorf("/status: %s", got.Body)
		}
	}
}

// refused checks that a read fails, with a Status that gives the reason.
func refused(t *testing.T, e *cluster.Endpoint, target string) {
	t.Helper()
	got := e.GetT(t, target, nil)
	var status metav1.Status
	if err := json.Unmarshal(got.Body, &status); err != nil || got.Status != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" ||
		status.Reason != metav1.StatusReasonServiceUnavailable || !strings.HasPrefix(status.Message, "the upstream apiserver ") {
		t.Errorf("%s%s: %d %s, %v", e.Name, target, got.Status, got.Body, err)
	}
}
