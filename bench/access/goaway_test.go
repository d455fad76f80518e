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
	w := sharedWorld(t)
	// The audit log has no bodies of service accounts.
	const accounts = "/api/v1/namespaces/" + teamA + "/serviceaccounts"
	large := `{"metadata":{"name":"robot","annotations":{"a":"` + strings.Repeat("a", 200<<10) + `"}}}`
	open := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.api.KubeconfigT(t, w.api.URL, tokenOf(proxyUser)), TLS: true})
	for name, test := range map[string]struct {
		f      *front
		caller string
		status int
	}{
		"anonymous clients": {openFront(t), "anonymous", forbidden},
		"wrong tokens":      {&front{server: newServer(t, "proxy", open.URL, open.CA), proxy: open}, "garbage", unknown},
	} {
		t.Run(name, func(t *testing.T) {
			const clients, requests = 8, 8
			var asking sync.WaitGroup
			for i := range clients {
				asking.Go(func() {
					for range requests {
						for _, r := range []struct {
							request
							status int
						}{
							{request{method: http.MethodPost, target: accounts, body: `{"metadata":{"name":"robot"}}`}, http.StatusConflict},
							{request{method: http.MethodPost, target: accounts, body: large}, http.StatusConflict},
							{request{method: http.MethodDelete, target: accounts + "/none"}, http.StatusNotFound},
							{request{target: accounts + "/robot/none"}, http.StatusNotFound},
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
