package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// shardSelector is the parameter for one half of a collection.
var shardSelector = "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')")

// Upstream gets requests with a shardSelector unchanged, although the cache has the objects: only
// upstream knows whether it selects shards.
func TestShardSelectorsAreForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		_, l := serveTo(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprintf(w, "%s %s", r.Method, r.RequestURI)
		}, testOptions())
		client := clientTo(t, l, "http/1.1")
		for _, test := range []struct{ method, target string }{
			{http.MethodGet, recentPath + "?" + shardSelector},
			{http.MethodGet, recentPath + "?resourceVersion=0&" + shardSelector},
			{http.MethodGet, recentPath + "?limit=1&" + shardSelector},
			{http.MethodGet, recentPath + "?watch=1&resourceVersion=2&" + shardSelector},
			{http.MethodGet, recentPath + "/c-000001?resourceVersion=0&" + shardSelector},
			{http.MethodGet, recentPath + "?resourceVersion=0&shardSelector="},
			{http.MethodGet, recentPath + "?resourceVersion=0&shardSelector=x"},
			{http.MethodGet, recentPath + "?resourceVersion=0&shard%53elector=x"},
			{http.MethodDelete, recentPath + "?" + shardSelector},
		} {
			req, err := http.NewRequestWithContext(t.Context(), test.method, client.url+test.target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if want := test.method + " " + test.target; err != nil || resp.StatusCode != http.StatusTeapot || string(body) != want {
				t.Errorf("%s: %d %.300s, %v", want, resp.StatusCode, body, err)
			}
		}
	})
}
