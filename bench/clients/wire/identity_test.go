package wire

import (
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
)

// If a client sends credentials, it gets the apiserver's answer for its identity, even if the cache
// has an answer.
func TestIdentityOfTheClient(t *testing.T) {
	w := sharedWorld(t)
	w.AllowBob(t)
	const (
		pods      = "/api/v1/namespaces/default/pods"
		allowed   = "/api/v1/namespaces/default/configmaps"
		forbidden = http.StatusForbidden
	)
	endpoints := w.Endpoints(t)
	for _, warm := range []string{pods, allowed} {
		clients.Get(t, w.Proxy.URL+warm+"?resourceVersion=0")
	}
	for name, test := range map[string]struct {
		header http.Header
		target string
		want   int
	}{
		"nobody's token":        {bearer("garbage"), pods, http.StatusUnauthorized},
		"nobody's token, cache": {bearer("garbage"), pods + "?resourceVersion=0", http.StatusUnauthorized},
		"nobody's token, watch": {bearer("garbage"), pods + "?watch=1&resourceVersion=0", http.StatusUnauthorized},
		"nobody's token, get":   {bearer("garbage"), "/api/v1/namespaces/default?resourceVersion=0", http.StatusUnauthorized},
		"bob":                   {bearer(clients.BobsToken), pods, forbidden},
		"bob, cache":            {bearer(clients.BobsToken), pods + "?resourceVersion=0", forbidden},
		"bob, watch":            {bearer(clients.BobsToken), pods + "?watch=1&resourceVersion=0", forbidden},
		"bob, allowed":          {bearer(clients.BobsToken), allowed + "?resourceVersion=0", http.StatusOK},
		"bob, impersonated":     {http.Header{"Impersonate-User": {"bob"}}, pods + "?resourceVersion=0", forbidden},
		"bob, may impersonate": {
			http.Header{"Authorization": {"Bearer " + clients.BobsToken}, "Impersonate-User": {"admin"}, "Impersonate-Group": {"system:masters"}},
			pods + "?resourceVersion=0", forbidden,
		},
		"another scheme": {http.Header{"Authorization": {"Basic YTpi"}}, pods + "?resourceVersion=0", forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			got := endpoints[1].GetT(t, test.target, test.header)
			if got.Status != test.want {
				t.Errorf("%d instead of %d\n%s", got.Status, test.want, got.Body)
			}
			header := test.header.Clone()
			if header.Get("Authorization") == "" {
				header.Set("Authorization", "Bearer "+endpoints[0].Token) // the proxy's own token
			}
			want := endpoints[0].GetT(t, test.target, header)
			if got.Status != want.Status || got.Status != http.StatusOK && string(got.Body) != string(want.Body) {
				t.Errorf("the apiserver says %d %s\nthe proxy %d %s", want.Status, want.Body, got.Status, got.Body)
			}
		})
	}
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
