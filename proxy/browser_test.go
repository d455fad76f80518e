package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// Headers as clients send them. HOST stands for the address of the listener.
const (
	chrome     = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/142.0.0.0\r\nAccept-Language: en\r\n"
	newChrome  = chrome + "Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\nSec-Fetch-Site: "
	oldSafari  = "User-Agent: Mozilla/5.0 (Macintosh) Version/15.0 Safari/605.1.15\r\nAccept-Language: de-de\r\n"
	curl       = "User-Agent: curl/8.5.0\r\nAccept: */*\r\n"
	kubectl    = "User-Agent: kubectl/v1.36.3 (linux/amd64) kubernetes/0123456\r\nAccept: application/json\r\n"
	nodeFetch  = "User-Agent: node\r\nAccept: */*\r\nAccept-Language: *\r\nSec-Fetch-Mode: cors\r\n"
	python     = "User-Agent: OpenAPI-Generator/36.0.0/python\r\n"
	powershell = "User-Agent: Mozilla/5.0 (Windows NT 10.0; en-US) PowerShell/7.5.0\r\n"
	evilOrigin = "Origin: https://evil.example\r\n"
	ownPage    = "Origin: http://HOST\r\n"
	handshake  = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	spdy       = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
	jsonBody   = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	formBody   = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}"
	zeroBody   = "Content-Length: 0\r\n\r\n"

	podsPath    = "/api/v1/namespaces/a/pods"
	execPath    = podsPath + "/x/exec?command=sh&stdin=1"
	watchPath   = "/api/v1/namespaces/a/secrets?watch=1"
	servicePath = "/api/v1/namespaces/a/services/s/proxy/login"
)

// browserCases are requests to a listener without authentication, with the reasons for which they
// are refused.
var browserCases = map[string]struct{ line, rest, reason string }{
	// Pages of other origins in new browsers.
	"watch by WebSocket":       {"GET " + watchPath, chrome + evilOrigin + handshake, access.ReasonOrigin},
	"sandboxed frame":          {"GET " + watchPath, chrome + "Origin: null\r\n" + handshake, access.ReasonOrigin},
	"another local port":       {"GET " + watchPath, chrome + "Origin: http://127.0.0.1:1\r\n" + handshake, access.ReasonOrigin},
	"another scheme":           {"GET " + watchPath, chrome + "Origin: https://HOST\r\n" + handshake, access.ReasonOrigin},
	"a longer name":            {"GET " + watchPath, chrome + "Origin: http://HOST.evil.example\r\n" + handshake, access.ReasonOrigin},
	"extension":                {"GET " + podsPath, newChrome + "none\r\nOrigin: chrome-extension://abc\r\n", access.ReasonOrigin},
	"two Origins":              {"GET " + podsPath, chrome + ownPage + evilOrigin, access.ReasonOrigin},
	"two sites":                {"GET " + podsPath, newChrome + "same-origin\r\nSec-Fetch-Site: cross-site\r\n", access.ReasonSite},
	"empty site":               {"GET " + podsPath, newChrome + "\r\n", access.ReasonSite},
	"image":                    {"GET " + podsPath, newChrome + "cross-site\r\n", access.ReasonSite},
	"image from another port":  {"GET " + podsPath, newChrome + "same-site\r\n", access.ReasonSite},
	"preflight":                {"OPTIONS " + podsPath, chrome + evilOrigin + "Access-Control-Request-Method: DELETE\r\n", access.ReasonOrigin},
	"no header names the page": {"POST /api/v1/nodes/n/proxy/run/a/b/c?cmd=id", oldSafari + zeroBody, access.ReasonInteractive},
	// Pages of the proxy's own origin, such as a proxied service's.
	"own page: exec":         {"GET " + execPath, chrome + ownPage + handshake, access.ReasonInteractive},
	"own page: attach":       {"GET " + podsPath + "/x/attach", chrome + ownPage + handshake, access.ReasonInteractive},
	"own page: port-forward": {"GET " + podsPath + "/x/portforward", newChrome + "same-origin\r\n" + ownPage + handshake, access.ReasonInteractive},
	"own page: console":      {"GET /apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v/console", chrome + ownPage + handshake, access.ReasonInteractive},
	"own page: kubelet":      {"POST /api/v1/nodes/n/proxy/run/a/b/c?cmd=id", newChrome + "same-origin\r\n" + ownPage + jsonBody, access.ReasonInteractive},
	"own page: form, proxy":  {"POST " + servicePath, newChrome + "same-origin\r\n" + ownPage + formBody, ""},
	"own page: WebSocket":    {"GET " + watchPath, chrome + ownPage + handshake, ""},
	"own page: its service":  {"GET " + servicePath, chrome + ownPage + handshake, ""},
	"own page: JSON":         {"POST " + podsPath, newChrome + "same-origin\r\n" + ownPage + jsonBody, ""},
	"typed address":          {"GET " + servicePath, newChrome + "none\r\nSec-Fetch-User: ?1\r\n", ""},
	"typed, old browser":     {"GET " + podsPath, oldSafari, ""},
	"a tool's page":          {"POST " + podsPath, newChrome + "same-origin\r\nOrigin: http://localhost:4466\r\n" + jsonBody, ""},
	// Other clients.
	"curl":                       {"GET " + podsPath, curl, ""},
	"curl, DELETE":               {"DELETE " + podsPath + "/x", curl, ""},
	"curl, OPTIONS":              {"OPTIONS " + podsPath, curl, ""},
	"kubectl, create":            {"POST " + podsPath, kubectl + jsonBody, ""},
	"kubectl, exec by WebSocket": {"GET " + execPath, kubectl + handshake, ""},
	"kubectl, exec by SPDY":      {"POST " + execPath, kubectl + spdy + zeroBody, ""},
	"Node, fetch":                {"GET " + podsPath, nodeFetch, ""},
	"Node, POST":                 {"POST " + podsPath, nodeFetch + jsonBody, ""},
	"Python, exec":               {"GET " + execPath, ownPage + handshake, ""},
	"Java, watch by WebSocket":   {"GET " + watchPath, "User-Agent: fabric8-kubernetes-client/7.4.0\r\n" + ownPage + handshake, ""},
	"PowerShell, JSON":           {"POST " + podsPath, powershell + jsonBody, ""},
	"no agent, SPDY":             {"POST " + execPath, spdy + zeroBody, ""},
}

// browserUpstream answers all requests, accepts upgrades, and counts requests.
func browserUpstream(seen *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		w.Header().Set("Access-Control-Allow-Origin", "*") // the worst case
		if protocol := r.Header.Get("Upgrade"); protocol != "" {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// Without authentication, requests from pages of another origin are refused. All other clients are
// served.
func TestBrowsers(t *testing.T) {
	var seen atomic.Int64
	_, address := serveTo(t, forwardsAll{}, browserUpstream(&seen), Options{Options: read.Options{SyncTimeout: time.Minute}, Limits: testLimits()})
	for name, test := range browserCases {
		t.Run(name, func(t *testing.T) {
			before := seen.Load()
			resp, body := rawAsk(t, address, address.String(), test.line, test.rest)
			if test.reason == "" {
				if resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusSwitchingProtocols || seen.Load() != before+1 {
					t.Fatalf("%s %s", resp.Status, body)
				}
				return
			}
			if resp.StatusCode != http.StatusForbidden || seen.Load() != before || !resp.Close ||
				!strings.Contains(body, strings.Split(access.PageRefusals[test.reason], "%s")[0]) {
				t.Errorf("%s %s; upstream saw %d requests", resp.Status, body, seen.Load()-before)
			}
			if resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("header %v", resp.Header)
			}
		})
	}
}

// rawAsk sends a request unchanged, except for HOST, and returns the response's head and body.
func rawAsk(t *testing.T, address *rawListener, host, line, rest string) (*http.Response, string) {
	t.Helper()
	c := dial(t, address)
	_ = c.SetDeadline(time.Now().Add(testWait))
	if !strings.Contains(rest, "\r\n\r\n") {
		rest += "\r\n"
	}
	if _, err := io.WriteString(c, strings.ReplaceAll(line+" HTTP/1.1\r\nHost: HOST\r\n"+rest, "HOST", host)); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(line, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// Browsers are served only under names that pages cannot make resolve to the listener.
func TestRebinding(t *testing.T) {
	const name = "evil.example:8001"
	var seen atomic.Int64
	upstream := browserUpstream(&seen)
	_, loopback := serveTo(t, forwardsAll{}, upstream, Options{Limits: testLimits()})
	_, socket := serveTo(t, forwardsAll{}, upstream, Options{Fixed: Fixed{AnyHost: true}, Limits: testLimits()})
	for _, test := range []struct {
		at         *rawListener
		host, rest string
		want       int
	}{
		{loopback, name, curl, http.StatusForbidden},
		{loopback, name, chrome, http.StatusForbidden},
		{loopback, name, newChrome + "same-origin\r\n", http.StatusForbidden},
		{loopback, "10.0.0.1", curl, http.StatusForbidden},
		{loopback, "127.0.0.1.evil.example", curl, http.StatusForbidden},
		{loopback, "localhost.evil.example", curl, http.StatusForbidden},
		{loopback, "LocalHost:8001", chrome, http.StatusAccepted},
		{loopback, "[::1]:8001", chrome, http.StatusAccepted},
		{loopback, "127.9.9.9", chrome, http.StatusAccepted},
		{socket, name, curl, http.StatusAccepted},
		{socket, "%2Frun%2Fproxy.sock", python, http.StatusBadRequest}, // no host
		{socket, name, chrome, http.StatusForbidden},
		{socket, name, newChrome + "same-origin\r\n", http.StatusForbidden},
		// A page can set the User-Agent.
		{socket, name, "User-Agent: curl\r\nAccept-Language: *\r\n", http.StatusForbidden},
		{socket, name, "Origin: http://" + name + "\r\n", http.StatusForbidden},
		{socket, "localhost", chrome, http.StatusAccepted},
	} {
		if resp, body := rawAsk(t, test.at, test.host, "GET "+podsPath, test.rest); resp.StatusCode != test.want {
			t.Errorf("Host: %s, %s: %s %s, want %d", test.host, test.rest, resp.Status, body, test.want)
		}
	}
}

// A page of another origin that has a bearer token may open a WebSocket, also if the token is the
// name of a subprotocol.
func TestPagesWithTokens(t *testing.T) {
	var seen atomic.Int64
	_, address := serveTo(t, forwardsAll{}, browserUpstream(&seen), Options{Options: read.Options{SyncTimeout: time.Minute, Access: judging(t)}, Limits: testLimits()})
	for credentials, want := range map[string]int{
		"Authorization: Bearer reader\r\n": http.StatusSwitchingProtocols,
		"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.cmVhZGVy, binary.k8s.io\r\n": http.StatusSwitchingProtocols,
		"Sec-WebSocket-Protocol: binary.k8s.io\r\n":                                                 http.StatusUnauthorized,
		"": http.StatusUnauthorized,
	} {
		if resp, body := rawAsk(t, address, address.String(), "GET "+execPath, chrome+evilOrigin+credentials+handshake); resp.StatusCode != want {
			t.Errorf("%q: %s %s, want %d", credentials, resp.Status, body, want)
		}
	}
}

// allowing answers preflights as kube-apiserver does for one allowed origin, and notes their headers.
func allowing(seen *atomic.Pointer[http.Header]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen.Store(&r.Header)
		if r.Header.Get("Origin") != "https://dash.example" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Www-Authenticate", "x")
		w.WriteHeader(http.StatusNoContent)
	}
}

// Browsers ask without credentials whether a page may send a request. Upstream answers for the origins that
// it allows. Everything else without credentials is refused, and of what a stranger sends, upstream sees
// nothing but the question. No path of a stranger becomes a label of metrics.
func TestPagesAskForTheirOrigin(t *testing.T) {
	var seen atomic.Pointer[http.Header]
	registry := prometheus.NewRegistry()
	s, address := serveLogged(t, forwardsAll{}, allowing(&seen), Options{Options: read.Options{SyncTimeout: time.Minute, Access: judging(t)}, Limits: testLimits()}, registry, zap.NewNop())
	const (
		dash = "Origin: https://dash.example\r\n"
		asks = "Access-Control-Request-Method: DELETE\r\nAccess-Control-Request-Headers: authorization\r\n"
	)
	options := "OPTIONS " + podsPath
	for _, test := range []struct {
		line, rest string
		asked      bool // upstream
		want       int
	}{
		{options, chrome + dash + asks + "Cookie: a=b\r\nX-Other: c\r\n", true, http.StatusNoContent},
		{options + "?resourceVersion=0", newChrome + "cross-site\r\n" + dash + asks, true, http.StatusNoContent},
		{"OPTIONS " + servicePath, chrome + dash + asks, true, http.StatusNoContent},
		{"OPTIONS /api/v1/watch/made-up", chrome + dash + asks, true, http.StatusNoContent},
		{options, chrome + dash + asks + "Connection: Origin\r\n", true, http.StatusNoContent},
		{options, chrome + evilOrigin + asks, true, http.StatusUnauthorized},
		{options, chrome + asks, false, http.StatusUnauthorized},
		{options, chrome + dash, false, http.StatusUnauthorized},
		{options, chrome + "Origin:\r\n" + asks, false, http.StatusUnauthorized},
		{options, chrome + dash + evilOrigin + asks, false, http.StatusUnauthorized},
		{options, chrome + dash + asks + jsonBody, false, http.StatusUnauthorized},
		{options, chrome + dash + asks + handshake, false, http.StatusUnauthorized},
		{options, chrome + dash + asks + "Authorization:\r\n", false, http.StatusUnauthorized},
		{options, chrome + dash + asks + "Impersonate-User: admin\r\n", false, http.StatusUnauthorized},
		{"GET " + podsPath, chrome + dash + asks, false, http.StatusUnauthorized},
	} {
		seen.Store(nil)
		resp, body := rawAsk(t, address, address.String(), test.line, test.rest)
		h := seen.Load()
		if resp.StatusCode != test.want || (h != nil) != test.asked || !resp.Close {
			t.Errorf("%s %q: %s %s, want %d", test.line, test.rest, resp.Status, body, test.want)
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); (got != "") != (test.want == http.StatusNoContent) || test.want == http.StatusNoContent && resp.Header.Get("Www-Authenticate") != "" {
			t.Errorf("%s %q: %v", test.line, test.rest, resp.Header)
		}
		if h != nil && (h.Get("Origin") == "" || h.Get("Access-Control-Request-Method") != "DELETE" || h.Get("Cookie") != "" || h.Get("X-Other") != "") {
			t.Errorf("%s %q: upstream gets %v", test.line, test.rest, *h)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "resource" && l.GetValue() != "" {
					t.Errorf("%s has %v", f.GetName(), m.GetLabel())
				}
			}
		}
	}
	for _, f := range s.metrics.Recent() {
		if f.Resource != "" {
			t.Errorf("recently forwarded: %+v", f)
		}
	}
}

// Over HTTP/2, the answer is the last one of a stranger's connection. Strangers of a network have half of
// the places upstream, whatever they ask for.
func TestQuestionsOfPagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up, most atomic.Int64
		answer := make(chan struct{})
		o := testOptions()
		o.Access = judging(t)
		_, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
			most.Store(max(most.Load(), up.Add(1)))
			defer up.Add(-1)
			<-answer
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.WriteHeader(http.StatusNoContent)
		}, o)
		var all sync.WaitGroup
		codes := make(chan int, 3*originsMost)
		for range 3 * originsMost {
			all.Go(func() {
				client := clientTo(t, l, "h2")
				req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, client.url+servicePath, http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header = http.Header{"Origin": {"https://dash.example"}, "Access-Control-Request-Method": {"GET"}}
				resp, err := client.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				codes <- resp.StatusCode
			})
		}
		synctest.Wait()
		close(answer)
		all.Wait()
		close(codes)
		count := map[int]int{}
		for code := range codes {
			count[code]++
		}
		if most.Load() != originsMost/2 || count[http.StatusNoContent] != originsMost/2 || count[http.StatusTooManyRequests] != 3*originsMost-originsMost/2 {
			t.Errorf("%d at a time, %v", most.Load(), count)
		}
	})
}

// Credentials that a browser adds on its own do not allow requests from pages of another origin. A
// bearer token allows them.
func TestAmbientCredentials(t *testing.T) {
	plain := Options{Options: read.Options{Access: &access.Access{}}}
	over := Options{Fixed: Fixed{TLS: &tls.Config{}}, Options: read.Options{Access: &access.Access{}}} //nolint:gosec // unused
	for _, test := range []struct {
		who     string
		caller  *access.Caller
		options Options
		host    string
		origin  string
		refused bool
	}{
		{"token", &access.Caller{Token: true}, over, "proxy.example", "https://evil.example", false},
		{"token", &access.Caller{Token: true}, plain, "proxy.example", "https://evil.example", false},
		{"certificate", &access.Caller{ActsAs: &user.DefaultInfo{}}, over, "proxy.example", "https://evil.example", true},
		{"certificate", &access.Caller{ActsAs: &user.DefaultInfo{}}, over, "proxy.example", "null", true},
		{"certificate", &access.Caller{ActsAs: &user.DefaultInfo{}}, over, "proxy.example", "https://proxy.example", false},
		{"certificate", &access.Caller{ActsAs: &user.DefaultInfo{}}, over, "proxy.example:443", "https://proxy.example", false},
		{"certificate", &access.Caller{ActsAs: &user.DefaultInfo{}}, over, "proxy.example", "", false},
		{"anonymous", &access.Caller{}, over, "proxy.example", "https://evil.example", true},
		{"anonymous", &access.Caller{}, plain, "evil.example", "", true},
		{"anonymous", &access.Caller{}, plain, "localhost", "", false},
		{"anonymous", &access.Caller{}, plain, "", "", false},
	} {
		t.Run(test.who+" "+test.origin, func(t *testing.T) {
			req := &exchange.Request{Method: http.MethodGet, Target: watchPath, Host: test.host, Header: http.Header{"User-Agent": {"Mozilla/5.0"}}, Identity: test.caller}
			if test.options.TLS != nil {
				req.TLS = &tls.ConnectionState{}
			}
			if test.origin != "" {
				req.Header.Set("Origin", test.origin)
			}
			req.SplitTarget()
			req.Route = exchange.ParseRoute(req.Method, req.Path)
			if refusal := refuseBrowser(&test.options, req); (refusal != nil) != test.refused {
				t.Errorf("refused: %t", !test.refused)
			}
		})
	}
}
