package admin

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// The admin address answers scrapes and probes under any name. It answers browsers only under names
// that pages cannot make resolve to it.
func TestAdminVisits(t *testing.T) {
	admin := newAdmin(Options{Status: shortStatus, Everybody: true})
	const (
		service    = "watchproxy-admin.watchproxy.svc:8002"
		prometheus = "User-Agent: Prometheus/3.7.0\r\nAccept: text/plain;version=0.0.4\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n"
		probe      = "User-Agent: kube-probe/1.36\r\nAccept: */*\r\n"
	)
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
		// Browsers send Sec-Fetch-Site only to loopback and over TLS.
		{elsewhere, "10.0.0.1:8002", "/status", chrome, ""},
		{elsewhere, service, "/status", chrome, access.ReasonHost},
		{elsewhere, "evil.example", "/status", "User-Agent: x\r\nAccept-Language: *\r\n", access.ReasonHost},
		{elsewhere, "evil.example", "/metrics", chrome, access.ReasonHost},
		{loopback, service, "/debug/pprof/heap", curl, access.ReasonHost},
		{elsewhere, "10.0.0.1:8002", "/debug/pprof/heap", curl, ""},
		{loopback, "localhost:8002", "/", newChrome + "none\r\n", ""},
		{loopback, "localhost:8002", "/status", newChrome + "same-origin\r\n", ""},
		{loopback, "localhost:8002", "/status", oldSafari, ""},
		{loopback, "127.0.0.1:8002", "/metrics", curl, ""},
		// A proxy in the pod keeps the Host.
		{loopback, "10.0.0.1:8443", "/metrics", prometheus, ""},
		{loopback, "evil.example:8002", "/metrics", prometheus, access.ReasonHost},
		{loopback, service, "/status", curl, access.ReasonHost},
		{loopback, "localhost:8002", "/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n", ""},
		{loopback, "localhost:8002", "/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n", access.ReasonSite},
		{loopback, "localhost:8002", "/status", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n", access.ReasonSite},
		{loopback, "localhost:8002", "/status", chrome + evilOrigin, access.ReasonOrigin},
		{loopback, "localhost:8002", "/status", chrome + "Origin: http://localhost:8001\r\n", access.ReasonOrigin},
		{loopback, "localhost:8002", "/status", newChrome + "same-site\r\n", access.ReasonSite},
		{elsewhere, service, "/debug/x", curl, access.ReasonHost},
		{loopback, "localhost:8002", "/debug/pprof/", newChrome + "none\r\n", ""},
		{loopback, "localhost:8002", "/debug/pprof/profile", newChrome + "cross-site\r\n", access.ReasonSite},
	} {
		raw := "GET " + test.path + " HTTP/1.1\r\nHost: " + test.host + "\r\n" + test.header + "\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: test.local, Port: 8002})
		if reason := adminReason(r.WithContext(ctx)); reason != test.reason {
			t.Errorf("%s: refused for %q, want %q", raw, reason, test.reason)
		}
		if test.reason == "" {
			continue
		}
		w := httptest.NewRecorder()
		admin.Server().Handler.ServeHTTP(w, r.WithContext(ctx))
		if w.Code != http.StatusForbidden || w.Body.String() != adminRefusals[test.reason]+"\n" {
			t.Errorf("%s: %d %s", raw, w.Code, w.Body)
		}
	}
}

// The proxy is ready between its start and its drain, while its caches are warm and upstream
// accepts its credentials. It is alive all the time. Each check tells its reason.
func TestProbes(t *testing.T) {
	var cold, refused error
	admin := newAdmin(Options{Everybody: true, Ready: []healthz.HealthChecker{
		healthz.NamedCheck("caches", func(*http.Request) error { return cold }),
		healthz.NamedCheck("credentials", func(*http.Request) error { return refused }),
	}})
	for _, step := range []struct {
		enter         func()
		failing, says string // a check
	}{
		{func() {}, "startup", "watchproxy does not listen yet"},
		{admin.Ready, "", ""},
		{func() { cold = errors.New("two caches") }, "caches", "two caches"},
		{func() { cold, refused = nil, errors.New("no") }, "credentials", "no"},
		{func() { refused = nil }, "", ""},
		{admin.Drain, "shutdown", "watchproxy is draining"},
	} {
		step.enter()
		for _, check := range []string{"startup", "caches", "credentials", "shutdown"} {
			want := "ok"
			if check == step.failing {
				want = "internal server error: " + step.says + "\n"
			}
			if got := visit(t, admin, nil, false, http.MethodGet, "/readyz/"+check, "").Body.String(); got != want {
				t.Errorf("%s says %q, want %q", check, got, want)
			}
		}
		ready := visit(t, admin, nil, false, http.MethodGet, "/readyz", "")
		if (ready.Code == http.StatusOK) != (step.failing == "") || strings.Contains(ready.Body.String(), "[-]"+step.failing+" failed") != (step.failing != "") {
			t.Errorf("/readyz: %d %s, want a failed %q", ready.Code, ready.Body, step.failing)
		}
		if live := visit(t, admin, nil, false, http.MethodGet, "/livez", ""); live.Code != http.StatusOK {
			t.Errorf("/livez: %d", live.Code)
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
