package clients

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Upstream is lost in two ways: connections break, or stay and nothing comes. Reads of any state go on, with a warning that
// tells for how long, or fail if they are to; reads of the most recent state fail soon, with a Status. When upstream is
// back, all is as before, without anybody reading the state again.
func TestUpstreamLost(t *testing.T) {
	t.Parallel()
	w := ownWorld(t)
	way, kubeconfig := startRelay(t, w)
	binary, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	start := func(settings string) endpoint {
		config := file(t, "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"+settings)
		p := cluster.ProxyT(t, cluster.ProxyOptions{Binary: binary, Kubeconfig: kubeconfig, Args: []string{"--config", config}})
		e := w.endpoints(t)[1]
		e.url, e.name = p.URL, settings
		return e
	}
	serving, failing := start("cache: {onUpstreamLoss: serve-stale}\n"), start("cache: {onUpstreamLoss: fail}\n")
	both := []endpoint{serving, failing}
	const old, recent = "/api/v1/configmaps?resourceVersion=0", "/api/v1/configmaps"
	well := func(e endpoint) bool {
		for _, target := range []string{old, recent} {
			if got := e.get(t, target, nil); got.status != http.StatusOK || got.header.Get("Warning") != "" {
				return false
			}
		}
		return true
	}
	for what, lose := range map[string]func() (back func()){
		"cut": func() func() {
			way.cut()
			return way.mend
		},
		"silent": func() func() {
			way.frozen.Lock()
			return way.frozen.Unlock
		},
	} {
		t.Run(what, func(t *testing.T) {
			for _, e := range both {
				eventually(t, e.name, func() bool { return well(e) })
			}
			back := lose()
			defer func() {
				back()
				for _, e := range both {
					eventually(t, e.name+": to be well again", func() bool { return well(e) })
				}
			}()
			for _, e := range both {
				refused(t, e, recent) // which shows the proxy that nobody answers
			}
			eventually(t, "a warning", func() bool {
				got := serving.get(t, old, nil)
				if got.status != http.StatusOK {
					t.Fatalf("%d %s", got.status, got.body)
				}
				return strings.HasPrefix(got.header.Get("Warning"), `299 - "watchproxy has not reached the apiserver for `)
			})
			eventually(t, "a refusal", func() bool { return failing.get(t, old, nil).status != http.StatusOK })
			refused(t, failing, old)
			for _, e := range both {
				refused(t, e, recent)
				refused(t, e, recent+"?watch=1")
				refused(t, e, recent+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
			}
		})
	}
	for _, e := range both {
		var list metav1.List
		if err := json.Unmarshal(e.get(t, recent, nil).body, &list); err != nil {
			t.Error(err)
		}
	}
}

// refused checks that a read fails with a Status that tells why, and soon.
func refused(t *testing.T, e endpoint, target string) {
	t.Helper()
	began := time.Now()
	got := e.get(t, target, nil)
	var status metav1.Status
	if err := json.Unmarshal(got.body, &status); err != nil || got.status != http.StatusServiceUnavailable ||
		status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(status.Message, "apiserver cannot be reached") {
		t.Errorf("%s%s: %d %s, %v", e.name, target, got.status, got.body, err)
	}
	const soon = 20 * time.Second
	if took := time.Since(began); took > soon {
		t.Errorf("%s%s failed after %v", e.name, target, took)
	}
}
