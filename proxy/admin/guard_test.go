package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// reviews has two users, by their tokens. One user may do everything, the other nothing.
type reviews struct{ asked []authorizer.AttributesRecord }

func (a *reviews) Authenticate(r *http.Request) (*access.Caller, error) {
	switch token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); token {
	case "good", "poor", "odd":
		return &access.Caller{User: &user.DefaultInfo{Name: token}, Token: true}, nil
	case "certificate":
		return &access.Caller{User: &user.DefaultInfo{Name: "good"}}, nil
	case "unknown":
		return nil, access.ErrUnavailable
	}
	return nil, access.ErrUnauthenticated
}

func (a *reviews) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	a.asked = append(a.asked, attributes.(authorizer.AttributesRecord))
	switch attributes.GetUser().GetName() {
	case "good":
		return authorizer.DecisionAllow, "", nil
	case "odd":
		return authorizer.DecisionAllow, "", errors.New("an error beside the decision")
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func newAdmin(o Options) *Admin { return New(prometheus.NewRegistry(), o) }

func shortStatus(prometheus.Gatherer) (any, error) { return "x", nil }

// visit sends a request to an admin handler as if the request had arrived at an address.
func visit(t *testing.T, a *Admin, local net.IP, overTLS bool, method, path, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	ctx := t.Context()
	if local != nil {
		ctx = context.WithValue(ctx, http.LocalAddrContextKey, &net.TCPAddr{IP: local, Port: 8002})
	}
	r := httptest.NewRequestWithContext(ctx, method, "http://10.0.0.1:8002"+path, strings.NewReader(body))
	if overTLS {
		r.TLS = &tls.ConnectionState{}
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a.Server().Handler.ServeHTTP(w, r)
	return w
}

var (
	loopback  = net.IPv4(127, 0, 0, 1)
	elsewhere = net.IPv4(10, 0, 0, 1)
)

// Requests on loopback are served. Other requests need credentials, over TLS, and the right to the
// path, unless the path is open.
func TestGuard(t *testing.T) {
	t.Parallel()
	open := []string{"/livez", "/readyz", "/"}
	for name, test := range map[string]struct {
		local     net.IP
		plain     bool
		path      string
		token     string
		header    []string
		noTLS     bool // the configuration has no certificate
		everybody bool
		method    string
		want      int
		says      string
	}{
		"on loopback":           {local: loopback, plain: true, path: "/metrics", want: 200},
		"profile on loopback":   {local: loopback, plain: true, path: "/debug/pprof/", want: 200},
		"relayed to loopback":   {local: loopback, plain: true, path: "/metrics", header: []string{"X-Forwarded-For", "10.0.0.2"}, want: 403, says: "use https"},
		"relayed, with a token": {local: loopback, path: "/metrics", token: "good", header: []string{"Forwarded", "for=10.0.0.2"}, want: 200},
		"unknown address":       {plain: true, path: "/metrics", want: 403, says: "use https"},
		"probe":                 {local: elsewhere, plain: true, path: "/livez", want: 200},
		// There is no such check.
		"part of a probe":             {local: elsewhere, plain: true, path: "/livez/x", want: 404},
		"change of a probe":           {local: elsewhere, plain: true, path: "/livez", method: "POST", want: 403},
		"the open page":               {local: elsewhere, plain: true, path: "/", want: 200},
		"the open page's file":        {local: elsewhere, plain: true, path: "/page.js", want: 200},
		"not the page's figures":      {local: elsewhere, plain: true, path: "/status", want: 403},
		"another way to write a path": {local: elsewhere, plain: true, path: "/livez/../metrics", want: 307},
		"an escaped way":              {local: elsewhere, plain: true, path: "/livez%2f..%2fmetrics", want: 404},
		"metrics, not encrypted":      {local: elsewhere, plain: true, path: "/metrics", token: "good", want: 403, says: "only taken over TLS: use https"},
		"metrics without TLS":         {local: elsewhere, plain: true, path: "/metrics", token: "good", noTLS: true, want: 403, says: "port-forward"},
		"no credentials":              {local: elsewhere, path: "/metrics", want: 401, says: "bearer token"},
		"unreviewed credentials":      {local: elsewhere, path: "/metrics", token: "unknown", want: 503},
		"a user with the right":       {local: elsewhere, path: "/metrics", token: "good", want: 200},
		"a user without":              {local: elsewhere, path: "/metrics", token: "poor", want: 403, says: `user "poor" cannot get path "/metrics": a ClusterRole`},
		"a review with an error":      {local: elsewhere, path: "/metrics", token: "odd", want: 503},
		"impersonation":               {local: elsewhere, path: "/metrics", token: "good", header: []string{"Impersonate-User", "poor"}, want: 403, says: "Impersonate-User"},
		"profile without":             {local: elsewhere, path: "/debug/pprof/", token: "poor", want: 403},
		"token beats the Origin":      {local: elsewhere, path: "/metrics", token: "good", header: []string{"Origin", "https://evil.example"}, want: 200},
		"a certificate does not":      {local: elsewhere, path: "/metrics", token: "certificate", header: []string{"Origin", "https://evil.example"}, want: 403, says: "another origin"},
		"without authentication":      {local: elsewhere, plain: true, path: "/metrics", everybody: true, want: 200},
		"profile without it":          {local: elsewhere, plain: true, path: "/debug/pprof/heap", everybody: true, want: 403, says: "profiles"},
	} {
		known := &reviews{}
		options := Options{Status: shortStatus, Everybody: test.everybody, Open: open}
		if !test.noTLS {
			options.Access = known
		}
		a := newAdmin(options)
		a.Ready()
		header := test.header
		if test.token != "" {
			header = append(header, "Authorization", "Bearer "+test.token)
		}
		method := test.method
		if method == "" {
			method = http.MethodGet
		}
		w := visit(t, a, test.local, !test.plain, method, test.path, "debug", header...)
		if w.Code != test.want || !strings.Contains(w.Body.String(), test.says) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if (w.Code == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
			t.Errorf("%s: %v", name, w.Header())
		}
		for _, asked := range known.asked {
			if asked.Path != test.path || asked.Verb != strings.ToLower(method) || asked.ResourceRequest {
				t.Errorf("%s: reviewed is %+v", name, asked)
			}
		}
	}
}

// Where others reach the loopback address, only the open paths are served there, with and without
// authentication.
func TestRestrictedLoopback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, everybody := range []bool{false, true} {
			admin := newAdmin(Options{
				Status: shortStatus, Everybody: everybody,
				Restricted: true, Open: []string{"/livez", "/readyz", "/metrics"},
			})
			for path, want := range map[string]int{
				"/livez": 200, "/metrics": 200, "/status": 403, "/": 403, "/debug/pprof/": 403,
			} {
				// A header does not make a request one of another machine.
				for _, header := range [][]string{nil, {"X-Forwarded-For", "10.0.0.9"}} {
					if got := visit(t, admin, loopback, false, http.MethodGet, path, "", header...); got.Code != want {
						t.Errorf("%s, everybody: %v, %q: %d, want %d", path, everybody, header, got.Code, want)
					}
				}
			}
		}
	})
}
