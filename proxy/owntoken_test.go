package proxy

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Without authentication, a request with the proxy's own token is a request without credentials: the
// cache answers it, and the proxy forwards it as its own. Upstream judges all other tokens.
func TestOwnToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		options := testOptions()
		options.OwnToken = func(token string) bool { return token == "own" }
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "upstream got "+r.Header.Get("Authorization"))
		}, options)
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
			var header []string
			if test.authorization != "" {
				header = []string{"Authorization", test.authorization}
			}
			resp, body := clientTo(t, address, "http/1.1").get(t, test.path, header...)
			fromCache := resp.Header.Get("Content-Type") == "application/json"
			if fromCache != (test.want == "") || !fromCache && body != test.want {
				t.Errorf("%s with %q: %s, %.100s", test.path, test.authorization, resp.Status, body)
			}
		}
	})
}

// If the proxy needs a token, requests without one are refused, and nothing goes upstream.
func TestNeedsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		options := testOptions()
		options.OwnToken, options.NeedsToken = func(token string) bool { return token == "own" }, true
		_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("upstream got %s", r.URL)
		}, options)
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
			var header []string
			for _, value := range test.authorization {
				header = append(header, "Authorization", value)
			}
			if resp := clientTo(t, address, "http/1.1").open(t, test.path, header...); resp.StatusCode != test.want {
				t.Errorf("%s with %q: %s", test.path, test.authorization, resp.Status)
			}
		}
	})
}
