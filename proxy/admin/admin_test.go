package admin

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/proxy/browser"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// The admin address answers scrapes and probes under any name. It answers browsers only under names
// that no page can make resolve to it.
func TestAdminVisits(t *testing.T) {
	registry := prometheus.NewRegistry()
	counts := metrics.New(registry)
	admin := New(registry, counts, func() (any, error) { return "x", nil }, true)
	const (
		service    = "watchproxy-admin.watchproxy.svc:8002"
		prometheus = "User-Agent: Prometheus/3.7.0\r\nAccept: text/plain;version=0.0.4\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n"
		probe      = "User-Agent: kube-probe/1.36\r\nAccept: */*\r\n"
	)
	loopback, elsewhere := net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)
	for _, test := range []struct {
		local              net.IP
		host, path, header string
		reason             string
	}{
		{elsewhere, "10.0.0.1:8002", "/metrics", prometheus, ""},
		{elsewhere, service, "/metrics", prometheus, ""},
		{elsewhere, "watchproxy-admin", "/status", "User-Agent: Go-http-client/1.1\r\n", ""},
		{elsewhere, "10.0.0.1:8002", "/readyz", probe, ""},
		{elsewhere, "[fd00::1]:8002", "/livez", probe, ""},
		{elsewhere, "10.0.0.1:8002", "/", newChrome + "none\r\n", ""},
		{elsewhere, "10.0.0.1:8002", "/status", chrome, ""}, // Sec-Fetch-Site is for loopback and TLS only
		{elsewhere, service, "/status", chrome, browser.ReasonHost},
		{elsewhere, "evil.example", "/status", "User-Agent: x\r\nAccept-Language: *\r\n", browser.ReasonHost},
		{elsewhere, "evil.example", "/metrics", chrome, browser.ReasonHost},
		{elsewhere, service, "/debug/pprof/heap", curl, browser.ReasonHost},
		{elsewhere, "10.0.0.1:8002", "/debug/pprof/heap", curl, ""},
		{loopback, "localhost:8002", "/", newChrome + "none\r\n", ""},
		{loopback, "localhost:8002", "/status", newChrome + "same-origin\r\n", ""},
		{loopback, "localhost:8002", "/status", oldSafari, ""},
		{loopback, "127.0.0.1:8002", "/metrics", curl, ""},
		{loopback, "10.0.0.1:8443", "/metrics", prometheus, ""}, // a proxy in the pod keeps the Host
		{loopback, "evil.example:8002", "/metrics", prometheus, browser.ReasonHost},
		{loopback, service, "/status", curl, browser.ReasonHost},
		{loopback, "localhost:8002", "/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n", ""},
		{loopback, "localhost:8002", "/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n", browser.ReasonSite},
		{loopback, "localhost:8002", "/status", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n", browser.ReasonSite},
		{loopback, "localhost:8002", "/status", chrome + evilOrigin, browser.ReasonOrigin},
		{loopback, "localhost:8002", "/status", chrome + "Origin: http://localhost:8001\r\n", browser.ReasonOrigin},
		{loopback, "localhost:8002", "/status", newChrome + "same-site\r\n", browser.ReasonSite},
		{loopback, "localhost:8002", "/debug/pprof/", newChrome + "none\r\n", ""},
		{loopback, "localhost:8002", "/debug/pprof/profile", newChrome + "cross-site\r\n", browser.ReasonSite},
		{loopback, "localhost:8002", "/debug/pprof/profile", oldSafari, browser.ReasonUntold},
		{nil, "evil.example", "/metrics", curl, browser.ReasonHost}, // the local address is unknown
	} {
		raw := "GET " + test.path + " HTTP/1.1\r\nHost: " + test.host + "\r\n" + test.header + "\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if test.local != nil {
			ctx = context.WithValue(ctx, http.LocalAddrContextKey, &net.TCPAddr{IP: test.local, Port: 8002})
		}
		if reason := adminReason(r.WithContext(ctx)); reason != test.reason {
			t.Errorf("%s: refused for %q, want %q", raw, reason, test.reason)
		}
		if test.reason == "" {
			continue
		}
		counted := counts.Browsers.WithLabelValues("admin", test.reason)
		before, w := testutil.ToFloat64(counted), httptest.NewRecorder()
		admin.Server().Handler.ServeHTTP(w, r.WithContext(ctx))
		if w.Code != http.StatusForbidden || testutil.ToFloat64(counted) != before+1 || w.Body.String() != adminRefusals[test.reason]+"\n" {
			t.Errorf("%s: %d %s", raw, w.Code, w.Body)
		}
	}
}

// Headers as clients send them.
const (
	chrome     = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/142.0.0.0\r\nAccept-Language: en\r\n"
	newChrome  = chrome + "Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\nSec-Fetch-Site: "
	oldSafari  = "User-Agent: Mozilla/5.0 (Macintosh) Version/15.0 Safari/605.1.15\r\nAccept-Language: de-de\r\n"
	curl       = "User-Agent: curl/8.5.0\r\nAccept: */*\r\n"
	evilOrigin = "Origin: https://evil.example\r\n"
)
