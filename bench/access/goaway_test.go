package access

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The apiserver ends an HTTP/2 connection after each response to a request without valid
// credentials. The proxy forwards requests of many clients over one connection. Still, no client
// notices that other clients lack credentials.
func TestUnauthenticatedRequestsDisturbNobody(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	const configs = "/api/v1/namespaces/" + teamA + "/configmaps"
	large := `{"metadata":{"name":"one"},"data":{"a":"` + strings.Repeat("a", 200<<10) + `"}}`
	open := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.api.KubeconfigT(t, w.api.URL, tokenOf(proxyUser)), TLS: true})
	for name, test := range map[string]struct {
		f      *front
		caller string
		status int
	}{
		"anonymous clients": {w.front(t, proxyUser, withAnonymous), "anonymous", forbidden},
		"wrong tokens":      {&front{server: newServer(t, "proxy", open.URL, open.CA), proxy: open}, "garbage", unknown},
	} {
		t.Run(name, func(t *testing.T) {
			const clients, requests = 8, 20
			var asking sync.WaitGroup
			for i := range clients {
				asking.Go(func() {
					for range requests {
						for _, r := range []struct {
							request
							status int
						}{
							{request{method: http.MethodPost, target: configs, body: `{"metadata":{"name":"one"}}`}, http.StatusConflict},
							{request{method: http.MethodPost, target: configs, body: large}, http.StatusConflict},
							{request{method: http.MethodDelete, target: configs + "/none"}, http.StatusNotFound},
							{request{target: configs + "/one/none"}, http.StatusNotFound},
						} {
							c, want := w.callers["admin"], r.status
							if i%4 == 0 {
								c, want = w.callers[test.caller], test.status
							}
							if err := test.f.expect(t.Context(), c, r.request, want); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			asking.Wait()
		})
	}
}
