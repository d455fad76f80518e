//go:build verify

package chart

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A running application notices neither a new token, nor that the sidecar is killed and starts
// again, nor that upstream is away.
func TestInClusterOutages(t *testing.T) {
	r := newPodRun(t, fromChart)
	app := r.startApplication()
	published := r.volumes["watchproxy-serviceaccount"]
	ca, err := os.ReadFile(filepath.Join(published, "ca.crt"))
	must(t, err)
	client := func() *cluster.Endpoint {
		t.Helper()
		token, err := os.ReadFile(filepath.Join(published, "token"))
		must(t, err)
		return cluster.EndpointT(t, "sidecar", "https://"+r.listen, string(token), ca)
	}
	first := client()
	pods := "/api/v1/namespaces/" + r.ns + "/pods?resourceVersion=0"
	fromCache := func(whose string, e *cluster.Endpoint) {
		t.Helper()
		cluster.Eventually(t, "an answer from the cache to "+whose, func() bool {
			before := r.cached()
			return e.GetT(t, pods, nil).Status == 200 && r.cached() > before
		})
	}
	fromCache("the pod's token", first)

	r.mountAccount(applicationAccount)
	cluster.Eventually(t, "the new token is published", func() bool { return client().Token != first.Token })
	fromCache("the new token", client())
	fromCache("the replaced token", first)

	r.sidecar.Kill()
	r.createPod("meanwhile")
	r.startSidecar()
	r.shows(app, "ADDED meanwhile")
	fromCache("the CA that was read before the restart", client())

	must(t, r.api.Stop())
	if got := client().GetT(t, pods, nil); got.Status != 200 {
		t.Errorf("while upstream is away, a list from the cache has the status %d", got.Status)
	}
	must(t, r.api.Start(t.Context()))
	r.createPod("afterwards")
	r.shows(app, "ADDED afterwards")
}

// startApplication starts application, which ends with the test.
func (r *podRun) startApplication() *cluster.Container {
	r.Helper()
	app := r.newApplication()
	_, err := app.Start(r.Context())
	must(r.T, err)
	r.Cleanup(app.Kill)
	return app
}
