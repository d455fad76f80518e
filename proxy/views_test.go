package proxy

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/projection"
)

// An answer that cannot be cut does not come through a view. It gives its slot back. Upstream is not
// asked for a compressed one, whatever the client accepts. Other answers are in bench/conformance.
func TestAnswersThatCannotBeCut(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"protobuf":  func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf") },
		"no type":   func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil },
		"brotli":    func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "br") },
		"malformed": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"data" `) },
		"gzip":      func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip") },
		"half":      func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"items":[`) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := cachetest.ConfigMaps(t, 0)
			o := testOptions()
			o.Views = map[string]*exchange.View{"slim": {Name: "slim", Fields: projection.Keep(nil)}}
			s, l := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
				if accepts := r.Header.Get("Accept-Encoding"); accepts != "" {
					t.Errorf("%s: upstream is asked for %s", name, accepts)
				}
				w.Header().Set("Content-Type", "application/json")
				answer(w)
				if name != "half" {
					_, _ = io.WriteString(w, `"`+strings.Repeat("secret", exchange.SmallBody)+`"`)
				}
			}, o)
			resp := clientTo(t, l, "http/1.1").open(t, "/views/slim/api/v1/namespaces/a/configmaps/c", "Accept", "application/json", "Accept-Encoding", "gzip")
			body, err := io.ReadAll(resp.Body)
			badGateway := name != "malformed" // which is found out after the answer has begun
			if badGateway != (resp.StatusCode == http.StatusBadGateway) || !badGateway && err == nil ||
				bytes.Contains(body, []byte("secret")) {
				t.Errorf("%s: %d %s, %v", name, resp.StatusCode, body, err)
			}
			if synctest.Wait(); s.limits.queues.forwards.Taken() != 0 {
				t.Errorf("%s: a slot is taken", name)
			}
		})
	}
}

// A view refuses what cannot be cut, and forwards writes that do not concern what it cuts. The
// writes and forms that it refuses are in bench/conformance.
func TestRefusalsOfViews(t *testing.T) {
	const maps = "/api/v1/namespaces/a/configmaps"
	for _, test := range []struct {
		method, target string
		header         []string
		want           int
	}{
		{http.MethodGet, maps + "?watch=1", []string{"Connection", "Upgrade", "Upgrade", "websocket"}, http.StatusBadRequest},
		{http.MethodPut, maps + "/c", nil, http.StatusMethodNotAllowed},
		{http.MethodPut, "/" + maps + "/c", nil, http.StatusMethodNotAllowed},
		{http.MethodPost, maps + "/c/eviction", nil, http.StatusOK},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", nil, http.StatusOK},
		{http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", nil, http.StatusOK},
		{http.MethodPut, "/api/v1/namespaces/a/pods/p/proxy/x", nil, http.StatusOK},
		{http.MethodPut, "/healthz", nil, http.StatusOK},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions()
			o.Views = map[string]*exchange.View{"every": {Name: "every", Fields: projection.Keep(nil)}}
			asked := false
			_, l := serveTo(t, forwardsAll{}, func(http.ResponseWriter, *http.Request) { asked = true }, o)
			client := clientTo(t, l, "http/1.1")
			req, err := http.NewRequestWithContext(t.Context(), test.method, client.url+"/views/every"+test.target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			for pair := range slices.Chunk(test.header, 2) {
				req.Header.Set(pair[0], pair[1])
			}
			resp, err := client.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != test.want || asked != (test.want == http.StatusOK) {
				t.Errorf("%s %s: %s, asked %t", test.method, test.target, resp.Status, asked)
			}
		})
	}
}

// Without views, their paths are upstream's, like all others.
func TestNoViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked string
		_, l := serveForwards(t, func(_ http.ResponseWriter, r *http.Request) { asked = r.RequestURI }, testLimits())
		const target = "/views/slim/api/v1/pods?limit=1"
		if resp, _ := clientTo(t, l, "http/1.1").get(t, target); resp.StatusCode != http.StatusOK || asked != target {
			t.Errorf("%d, upstream was asked for %s", resp.StatusCode, asked)
		}
	})
}
