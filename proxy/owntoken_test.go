package proxy

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// Without authentication, a request with the proxy's own token is a request without credentials: the
// cache answers it, and the proxy forwards it as its own. Upstream judges all other tokens. If the proxy needs
// a token, requests without one are refused, and nothing goes upstream.
func TestOwnToken(t *testing.T) {
	const path, cache, refused = "/api/v1/namespaces/a/configmaps", "from the cache", "refused"
	const cached, forwarded = path + "/c-000000?resourceVersion=0", "/version"
	for _, test := range []struct {
		needs         bool
		path          string
		authorization []string
		want          string
	}{
		{false, cached, nil, cache},
		{false, cached, []string{"Bearer own"}, cache},
		{false, cached, []string{"Bearer other"}, "upstream got Bearer other"},
		{false, cached, []string{"Bearer own2"}, "upstream got Bearer own2"},
		{false, cached, []string{"bearer own"}, cache}, // as Python's client writes it
		{false, cached, []string{"Basic own"}, "upstream got Basic own"},
		{false, forwarded, []string{"Bearer own"}, "upstream got "},
		{false, forwarded, []string{"Bearer other"}, "upstream got Bearer other"},
		{true, cached, nil, refused},
		{true, cached, []string{""}, refused},
		{true, cached, []string{"  "}, refused},
		{true, cached, []string{"", "Bearer own"}, refused},
		{true, path, nil, refused},
		{true, "/api/v1/namespaces/a/pods/p/exec?command=id", []string{""}, refused},
		{true, forwarded, nil, refused},
		{true, cached, []string{"Bearer own"}, cache},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := cachetest.ConfigMaps(t, 3)
			options := testOptions()
			options.OwnToken, options.NeedsToken = func(token string) bool { return token == "own" }, test.needs
			_, address := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "upstream got "+r.Header.Get("Authorization"))
			}, options)
			var header []string
			for _, value := range test.authorization {
				header = append(header, "Authorization", value)
			}
			resp, got := clientTo(t, address, "http/1.1").get(t, test.path, header...)
			switch {
			case resp.StatusCode == http.StatusUnauthorized:
				got = refused
			case resp.Header.Get("Content-Type") == "application/json":
				got = cache
			}
			if got != test.want {
				t.Errorf("%s with %q: %s, %.100s", test.path, test.authorization, resp.Status, got)
			}
		})
	}
}
