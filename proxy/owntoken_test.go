package proxy

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Without authentication, a request with the proxy's own token is a request without credentials: the
// cache answers it, and the proxy forwards it as its own. Upstream judges all other tokens.
func TestOwnToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "upstream got "+r.Header.Get("Authorization"))
		}, Options{
			Options: read.Options{SyncTimeout: time.Minute}, Stall: time.Minute, Limits: testLimits(), AnyHost: true,
			OwnToken: func(token string) bool { return token == "own" },
		})
		const cached, forwarded = "/api/v1/namespaces/a/configmaps/c-000000?resourceVersion=0", "/version"
		for _, test := range []struct{ path, authorization, want string }{
			{cached, "", ""},
			{cached, "Bearer own", ""},
			{cached, "Bearer other", "upstream got Bearer other"},
			{cached, "Bearer own2", "upstream got Bearer own2"},
			{cached, "bearer own", ""}, // as Python's client writes it
			{cached, "Basic own", "upstream got Basic own"},
			{forwarded, "Bearer own", "upstream got "},
			{forwarded, "Bearer other", "upstream got Bearer other"},
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address.String()+test.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if test.authorization != "" {
				req.Header.Set("Authorization", test.authorization)
			}
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: address.dial}}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			fromCache := resp.Header.Get("Content-Type") == "application/json"
			if err != nil || fromCache != (test.want == "") || !fromCache && string(body) != test.want {
				t.Errorf("%s with %q: %s, %.100s, %v", test.path, test.authorization, resp.Status, body, err)
			}
		}
	})
}

// If the proxy needs a token, requests without one are refused, and nothing goes upstream.
func TestNeedsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("upstream got %s", r.URL)
		}, Options{
			Options: read.Options{SyncTimeout: time.Minute}, Stall: time.Minute, Limits: testLimits(), AnyHost: true,
			OwnToken: func(token string) bool { return token == "own" }, NeedsToken: true,
		})
		const cached = "/api/v1/namespaces/a/configmaps/c-000000?resourceVersion=0"
		for _, test := range []struct {
			path          string
			authorization []string
			want          int
		}{
			{cached, nil, http.StatusUnauthorized},
			{cached, []string{""}, http.StatusUnauthorized},
			{cached, []string{"  "}, http.StatusUnauthorized},
			{cached, []string{"", "Bearer own"}, http.StatusUnauthorized},
			{"/api/v1/namespaces/a/configmaps", nil, http.StatusUnauthorized},
			{"/api/v1/namespaces/a/pods/p/exec?command=id", []string{""}, http.StatusUnauthorized},
			{"/version", nil, http.StatusUnauthorized},
			{cached, []string{"Bearer own"}, http.StatusOK},
		} {
			path, authorization, want := test.path, test.authorization, test.want
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address.String()+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header["Authorization"] = authorization
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: address.dial}}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s with %q: %s", path, authorization, resp.Status)
			}
		}
	})
}
