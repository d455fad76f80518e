package wire

import (
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// If there are no requests, a proxy does not wait for the end of its drain time, with or without idle
// connections.
func TestDrainOfIdleConnections(t *testing.T) {
	w := sharedWorld(t)
	p := w.FreshProxy(t, "drain: 10m\n")
	e := p.EndpointT(t)
	for _, target := range []string{"/version", "/api/v1/pods?resourceVersion=0"} {
		if a := e.GetT(t, target, nil); a.Status != http.StatusOK {
			t.Errorf("%s: %d", target, a.Status)
		}
	}
	clients.Terminate(t, p)
	clients.AwaitEnd(t, p)
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// A second signal ends a draining proxy before its drain time is over.
func TestSecondSignal(t *testing.T) {
	w := sharedWorld(t)
	p, err := cluster.StartProxy(t.Context(), cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, Settings: "drain: 10m\n"})
	cluster.MustT(t, err)
	e := p.EndpointT(t)
	clients.WatchAt(t, e, "/api/v1/pods?watch=1&resourceVersion=0")
	clients.Terminate(t, p)
	cluster.Eventually(t, "it drains", func() bool {
		return p.AdminT(t, "/readyz").Status == http.StatusInternalServerError
	})
	clients.Terminate(t, p)
	clients.AwaitEnd(t, p)
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "second signal") {
		t.Errorf("it ended with %v", err)
	}
}
