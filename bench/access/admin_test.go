package access

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A user of the admin address from elsewhere may get what RBAC allows for its nonResourceURLs, by a
// token or a certificate. A header marks the requests that come from elsewhere.
func TestAdminAddress(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	metrics := rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
	if err := w.api.Allow(t.Context(), "", "scrapers", cluster.Users("reader", "carol"), metrics); err != nil {
		t.Fatal(err)
	}
	f := w.startFront(t, w.api.URL, proxyUser, "", "--admin-listen=:0")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(f.proxy.AdminURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	inTheClear, s := newServer(t, "admin", "http://127.0.0.1:"+port, nil), newServer(t, "admin", "https://127.0.0.1:"+port, f.proxy.CA)
	for _, test := range []struct {
		name   string
		at     *server
		path   string
		caller caller
		want   int
	}{
		{"a probe", inTheClear, "/readyz", caller{}, ok},
		{"nobody", s, "/metrics", caller{}, unknown},
		{"an unknown token", s, "/metrics", caller{token: "nonsense"}, unknown},
		{"a token in the clear", inTheClear, "/metrics", caller{token: tokenOf("reader")}, forbidden},
		{"a user with the right", s, "/metrics", caller{token: tokenOf("reader")}, ok},
		{"the same user elsewhere", s, "/status", caller{token: tokenOf("reader")}, forbidden},
		{"a user without", s, "/metrics", caller{token: tokenOf("nobody")}, forbidden},
		{"an administrator", s, "/status", caller{token: w.api.Token}, ok},
		{"a certificate", s, "/metrics", caller{cert: w.ca.SignT(t, time.Hour, "carol")}, ok},
		{"a certificate without the right", s, "/metrics", caller{cert: w.ca.SignT(t, time.Hour, "dave")}, forbidden},
		{"another authority's certificate", s, "/metrics", caller{cert: w.foreign.SignT(t, time.Hour, "carol")}, unknown},
	} {
		c := test.caller.as(http.Header{"X-Forwarded-For": {"192.0.2.1"}})
		c.name, c.answers = test.name, []int{test.want}
		ask := func() answer { return test.at.must(t, c, request{target: test.path, protocol: cluster.HTTP1}) }
		if test.want == ok { // the apiserver may take a moment to know a new right
			cluster.Eventually(t, test.name, func() bool { return ask().status == ok })
		} else if got := ask(); got.status != test.want {
			t.Errorf("%s: %d %.200s", test.name, got.status, got.body)
		}
	}
}
