package proxy

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// shardingFeed is a feed whose upstream does this with shard selectors.
type shardingFeed struct {
	*rawFeed
	upstream object.Sharding
}

// Sharding implements read.Feed.
func (f shardingFeed) Sharding(context.Context) object.Sharding { return f.upstream }

// shardOf returns the parameter that selects a shard with, or without, the UID of all test objects.
func shardOf(has bool) string {
	start, middle, end := "0x0000000000000000", "0x"+sharding.HashField("u"), "0x10000000000000000"
	if has {
		start = middle
	} else {
		end = middle
	}
	return "shardSelector=" + url.QueryEscape("shardRange(object.metadata.uid, '"+start+"', '"+end+"')")
}

// sharded returns a client of a server with three objects. Upstream answers 418.
func sharded(t *testing.T, does object.Sharding, asked *atomic.Int32) *httpClient {
	t.Helper()
	c, _ := cachetest.ConfigMaps(t, 3)
	cachetest.SetBookmark(t, c)
	o := testOptions()
	o.Views = map[string]*exchange.View{
		"shards": {Name: "shards", Sharded: true},
		"pods":   {Name: "pods", Sharded: true, Resources: []schema.GroupResource{{Resource: "pods"}}},
	}
	_, l := serveTo(t, oneFeed{feed: shardingFeed{&rawFeed{c}, does}}, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}, o)
	return clientTo(t, l, "http/1.1")
}

// The cache selects shards as upstream does, or asks upstream. A view selects them in any case.
func TestShards(t *testing.T) {
	const all, none, forwarded = `"c-000002"`, `"items":[]`, ""
	for _, c := range []struct {
		does                  object.Sharding
		has, hasNot, page, in string
	}{
		{object.ShardingUnknown, forwarded, forwarded, forwarded, all},
		{object.ShardingIgnored, all, all, `"remainingItemCount":2`, all},
		{object.ShardingWithoutPages, all, none, forwarded, all},
		{object.ShardingWithPages, all, none, `"shardInfo":{"selector":"shardRange(object.metadata.uid, '0x`, all},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int32
			client := sharded(t, c.does, &asked)
			for target, want := range map[string]string{
				rivalPath + "?" + shardOf(true):                                      c.has,
				rivalPath + "?" + shardOf(false):                                     c.hasNot,
				rivalPath + "?limit=1&" + shardOf(true):                              c.page,
				"/views/shards" + rivalPath + "?" + shardOf(true):                    all,
				"/views/shards" + rivalPath + "?" + shardOf(false):                   none,
				"/views/shards" + rivalPath + "?limit=1&" + shardOf(true):            `"continue":"`,
				"/views/shards" + rivalPath + "?resourceVersion=0&" + shardOf(false): none,
				"/views/pods" + rivalPath + "?" + shardOf(false):                     none,
				"/views/shards" + rivalPath + "?shardSelector=&resourceVersion=0":    all,
			} {
				asked.Store(0)
				resp, body := client.get(t, target)
				if want == forwarded && resp.StatusCode == http.StatusTeapot {
					continue
				}
				if want == forwarded || resp.StatusCode != http.StatusOK || !strings.Contains(body, want) || asked.Load() > 0 {
					t.Errorf("%v %s: %d %.300s, want %q", c.does, target, resp.StatusCode, body, want)
				}
				if counts := strings.Contains(body, "remainingItemCount"); counts != (want == `"remainingItemCount":2`) {
					t.Errorf("%v %s counts %t: %.300s", c.does, target, counts, body)
				}
				selects := !strings.Contains(target, "shardSelector=&") && (c.does > object.ShardingIgnored || strings.HasPrefix(target, "/views/"))
				if strings.Contains(body, `"shardInfo"`) != selects {
					t.Errorf("%v %s: selects is %t, %.300s", c.does, target, selects, body)
				}
			}
		})
	}
}

// staleFeed is a feed that cannot prove its state.
type staleFeed struct{ shardingFeed }

// Fresh implements read.Feed.
func (staleFeed) Fresh(context.Context, *watchcache.Work) (s watchcache.Snapshot, err error) {
	return s, watchcache.ErrNotReady
}

// A cache that is out of date answers later.
func TestStaleShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		o := testOptions()
		o.Views = map[string]*exchange.View{"shards": {Name: "shards", Sharded: true}}
		_, l := serveTo(t, oneFeed{feed: staleFeed{shardingFeed{&rawFeed{c}, object.ShardingIgnored}}}, func(http.ResponseWriter, *http.Request) { t.Error("upstream was asked") }, o)
		resp, body := clientTo(t, l, "http/1.1").get(t, "/views/shards"+rivalPath+"?"+shardOf(true))
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !strings.Contains(body, "not-up-to-date") {
			t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
		}
	})
}

// An upstream that may ignore shard selectors is asked for no shard of a view.
func TestShardsOfViewsAreNotForwarded(t *testing.T) {
	const bad = "shardSelector=x"
	for _, c := range []struct {
		method, target string
		header         []string
		code           int
		says           string
	}{
		{http.MethodGet, rivalPath + "?" + bad, nil, http.StatusInternalServerError, "invalid shard selector: "},
		{http.MethodGet, rivalPath + "?watch=1&" + bad, nil, http.StatusInternalServerError, "invalid shard selector: "},
		{http.MethodGet, rivalPath + "?unknown=1&" + shardOf(true), nil, http.StatusBadRequest, "view shards"},
		{http.MethodGet, rivalPath + "?shardSelector=&unknown=1&" + shardOf(true), nil, http.StatusBadRequest, "parameters"},
		{http.MethodGet, rivalPath + "?" + shardOf(true) + "&%zz", nil, http.StatusBadRequest, "malformed query"},
		{http.MethodGet, rivalPath + "?" + shardOf(true) + ";", nil, http.StatusBadRequest, "malformed query"},
		{http.MethodGet, rivalPath + "?watch=1&" + shardOf(true) + "%zz", nil, http.StatusBadRequest, "malformed query"},
		{http.MethodDelete, rivalPath + "?" + shardOf(true) + ";", nil, http.StatusMethodNotAllowed, "without /views/shards"},
		{http.MethodDelete, rivalPath + "?x=1;" + shardOf(true), nil, http.StatusMethodNotAllowed, "without /views/shards"},
		{http.MethodDelete, rivalPath + "?" + shardOf(true) + strings.Repeat("&", 10001), nil, http.StatusMethodNotAllowed, "without /views/shards"},
		{http.MethodGet, rivalPath + "?resourceVersion=99&timeout=4s&" + shardOf(true), nil, http.StatusGatewayTimeout, "Too large resource version"},
		{http.MethodGet, rivalPath + "?resourceVersionMatch=Exact&resourceVersion=1&" + shardOf(true), nil, http.StatusGone, "too old"},
		{http.MethodGet, rivalPath + "?" + shardOf(true), []string{"Origin", "https://127.0.0.1:8001"}, http.StatusBadRequest, "parameters"},
		{http.MethodGet, rivalPath + "?" + shardOf(true), []string{"Accept", "application/yaml"}, http.StatusNotAcceptable, "form"},
		{http.MethodGet, rivalPath + "?" + shardOf(true), []string{"Authorization", "Bearer x"}, http.StatusForbidden, "authentication.mode delegated"},
		{http.MethodGet, "/api/v1/watch/configmaps?" + shardOf(true), nil, http.StatusBadRequest, "not-a-read"},
		{http.MethodGet, rivalPath + "?watch=1&" + shardOf(true), []string{"Connection", "Upgrade", "Upgrade", "websocket"}, http.StatusBadRequest, "not-a-read"},
		{http.MethodGet, "/" + rivalPath + "?" + shardOf(true), nil, http.StatusBadRequest, "not-a-read"},
		{http.MethodDelete, rivalPath + "?" + shardOf(true), nil, http.StatusMethodNotAllowed, "without /views/shards"},
		{http.MethodDelete, rivalPath + "?" + bad, nil, http.StatusMethodNotAllowed, "without /views/shards"},
		{http.MethodDelete, rivalPath, nil, http.StatusTeapot, ""},
		{http.MethodDelete, rivalPath + "/c-000001?" + shardOf(true), nil, http.StatusTeapot, ""},
		{http.MethodGet, rivalPath + "/c-000001?" + shardOf(true), nil, http.StatusTeapot, ""},
		{http.MethodGet, rivalPath + "?unknown=1", nil, http.StatusTeapot, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int32
			client := sharded(t, object.ShardingWithPages, &asked)
			req, err := http.NewRequestWithContext(t.Context(), c.method, client.url+"/views/shards"+c.target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(c.header); i += 2 {
				req.Header.Add(c.header[i], c.header[i+1])
			}
			resp, err := client.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if forwards := c.code == http.StatusTeapot; resp.StatusCode != c.code || !strings.Contains(string(body), c.says) || forwards != (asked.Load() > 0) {
				t.Errorf("%s %s %v: %d %s, asked %d times", c.method, c.target, c.header, resp.StatusCode, body, asked.Load())
			}
		})
	}
}
