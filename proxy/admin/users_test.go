package admin

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// The names of users are shown on loopback, and to users whom the apiserver gives the right to
// their path. No setting opens the path to everybody.
func TestNamesOfUsersAreGuarded(t *testing.T) {
	everything := []string{"/livez", "/readyz", "/metrics", "/status", "/"}
	for name, test := range map[string]struct {
		options Options
		local   net.IP // nil: unknown
		header  []string
		want    int
	}{
		"loopback":             {Options{}, loopback, nil, http.StatusOK},
		"loopback, IPv6":       {Options{}, net.IPv6loopback, nil, http.StatusOK},
		"relayed to loopback":  {Options{Everybody: true}, loopback, []string{"X-Forwarded-For", "10.0.0.7"}, http.StatusForbidden},
		"a page of elsewhere":  {Options{}, loopback, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"no authentication":    {Options{Everybody: true}, elsewhere, nil, http.StatusForbidden},
		"unknown address":      {Options{Everybody: true}, nil, nil, http.StatusForbidden},
		"all paths open":       {Options{Open: everything, Access: &reviews{}}, elsewhere, nil, http.StatusUnauthorized},
		"no right":             {Options{Open: everything, Access: &reviews{}}, elsewhere, []string{"Authorization", "Bearer poor"}, http.StatusForbidden},
		"the right":            {Options{Access: &reviews{}}, elsewhere, []string{"Authorization", "Bearer good"}, http.StatusOK},
		"apiserver is not up":  {Options{Access: &reviews{}}, elsewhere, []string{"Authorization", "Bearer unknown"}, http.StatusServiceUnavailable},
		"no certificate (TLS)": {Options{Open: everything}, elsewhere, nil, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			test.options.Level, test.options.Log = zap.NewAtomicLevel(), zap.NewNop()
			test.options.Users = func() any { return map[string]string{"name": "alice"} }
			w := visit(t, New(registry, metrics.New(registry), test.options), test.local, true, http.MethodGet, "/users", "", test.header...)
			if named := strings.Contains(w.Body.String(), "alice"); w.Code != test.want || named != (test.want == http.StatusOK) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}
