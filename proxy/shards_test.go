package proxy

import (
	"context"
	"errors"
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
	"github.com/watchproxy/watchproxy/proxy/read"
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
	client, _ := shardedFrom(t, oneFeed{feed: shardingFeed{&rawFeed{c}, does}}, testOptions(), asked)
	return client
}

// shardedFrom returns a client of a server with feeds, and the server.
func shardedFrom(t *testing.T, feeds read.Feeds, o Options, asked *atomic.Int32) (*httpClient, *Server) {
	t.Helper()
	o.Views = map[string]*exchange.View{
		"shards": {Name: "shards", Sharded: true},
		"pods":   {Name: "pods", Sharded: true, Resources: []schema.GroupResource{{Resource: "pods"}}},
	}
	s, l := serveTo(t, feeds, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}, o)
	return clientTo(t, l, "http/1.1"), s
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

// brokenFeeds cannot fill a cache now.
type brokenFeeds struct {
	oneFeed
	excluded bool
}

// Caches implements read.Feeds.
func (f brokenFeeds) Caches(schema.GroupVersionResource, object.Want) bool { return !f.excluded }

// Open implements read.Feeds.
func (brokenFeeds) Open(context.Context, schema.GroupVersionResource, object.Want, object.Encoding, uint64) (read.Feed, error) {
	return nil, errors.New("discovery failed")
}

// A cache that is out of date, or cannot be filled yet, answers later. One that configuration
// excludes never does, nor does any if the audit log has the bodies of reads.
func TestShardsWithoutCache(t *testing.T) {
	for why, test := range map[string]struct {
		feeds func(rawFeed) read.Feeds
		audit string
		code  int
		later string
	}{
		"not-up-to-date": {func(f rawFeed) read.Feeds { return oneFeed{feed: staleFeed{shardingFeed{&f, object.ShardingIgnored}}} }, "None", http.StatusServiceUnavailable, "1"},
		"not-cached":     {func(rawFeed) read.Feeds { return brokenFeeds{} }, "None", http.StatusServiceUnavailable, "1"},
		": not-cached":   {func(rawFeed) read.Feeds { return brokenFeeds{excluded: true} }, "None", http.StatusBadRequest, ""},
		"audit":          {func(f rawFeed) read.Feeds { return oneFeed{feed: shardingFeed{&f, object.ShardingIgnored}} }, "RequestResponse", http.StatusBadRequest, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := cachetest.ConfigMaps(t, 3)
			o := testOptions()
			o.Audit, _ = auditing(t, "- level: "+test.audit+"\n")
			var asked atomic.Int32
			client, _ := shardedFrom(t, test.feeds(rawFeed{c}), o, &asked)
			resp, body := client.get(t, "/views/shards"+rivalPath+"?"+shardOf(true))
			if resp.StatusCode != test.code || resp.Header.Get("Retry-After") != test.later || !strings.Contains(body, why) || asked.Load() > 0 {
				t.Errorf("%s: %d %v %s, asked %d times", why, resp.StatusCode, resp.Header, body, asked.Load())
			}
		})
	}
}

// soonerFeed is a feed whose upstream answers all lists faster.
type soonerFeed struct{ shardingFeed }

// Leaves implements read.Feed.
func (soonerFeed) Leaves(watchcache.Work) bool { return true }

// Fresh implements read.Feed.
func (f soonerFeed) Fresh(ctx context.Context, work *watchcache.Work) (watchcache.Snapshot, error) {
	if work != nil {
		return watchcache.Snapshot{}, errors.New("upstream would be faster")
	}
	return f.shardingFeed.Fresh(ctx, work)
}

// The cache answers lists of a view that upstream would otherwise answer: because it is faster,
// because its tokens are its own, or because a body would have to be indented.
func TestShardsThatWouldBeForwarded(t *testing.T) {
	const partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		var asked atomic.Int32
		client, _ := shardedFrom(t, oneFeed{feed: soonerFeed{shardingFeed{&rawFeed{c}, object.ShardingIgnored}}}, testOptions(), &asked)
		for _, test := range []struct{ target, accept, want string }{
			{rivalPath + "?", anyJSON, `"c-000002"`},
			{rivalPath + "?limit=1&fieldSelector=metadata.name!%3Dx&", anyJSON, `"continue":"`},
			{"/api/v1/configmaps?limit=1&fieldSelector=metadata.namespace%3Da&", anyJSON, `"continue":"`},
			{rivalPath + "?pretty=true&", anyJSON, "\n  \"kind\": \"ConfigMapList\""},
			{rivalPath + "?pretty=true&", partial, `{"kind":"PartialObjectMetadataList"`},
		} {
			resp, body := client.get(t, "/views/shards"+test.target+shardOf(true), "Accept", test.accept)
			if resp.StatusCode != http.StatusOK || !strings.Contains(body, test.want) || asked.Load() > 0 {
				t.Errorf("%s as %s: %d %.300s, want %q, asked %d times", test.target, test.accept, resp.StatusCode, body, test.want, asked.Load())
			}
		}
	})
}

// Kube-apiserver 1.36 does not select the events of watches that it reads from etcd.
func TestShardsOfEtcd(t *testing.T) {
	for _, inEtcd := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := cachetest.Resource()
			r.NoWatchCache = inEtcd
			c := watchcache.New(r, watchcache.Limits{})
			c.Reset([]*object.Object{cachetest.ConfigMap(t, 0, 1)}, 2)
			var asked atomic.Int32
			client, _ := shardedFrom(t, oneFeed{feed: shardingFeed{&rawFeed{c}, object.ShardingWithoutPages}}, testOptions(), &asked)
			resp := client.open(t, rivalPath+"?watch=1&resourceVersion=2&timeoutSeconds=1&"+shardOf(true))
			if forwarded := resp.StatusCode == http.StatusTeapot; forwarded != inEtcd {
				t.Errorf("in etcd %t: %d", inEtcd, resp.StatusCode)
			}
		})
	}
}

// Each further place in which a watch is found counts as memory.
func TestMemoryOfShards(t *testing.T) {
	held := func(start, end string) (taken int64) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := cachetest.ConfigMaps(t, 3)
			var asked atomic.Int32
			client, s := shardedFrom(t, oneFeed{feed: shardingFeed{&rawFeed{c}, object.ShardingWithPages}}, testOptions(), &asked)
			client.open(t, rivalPath+"?watch=1&resourceVersion=4&timeoutSeconds=1&shardSelector="+url.QueryEscape("shardRange(object.metadata.uid, '"+start+"', '"+end+"')"))
			synctest.Wait()
			taken = s.limits.memory.Taken()
		})
		return taken
	}
	one, two := held("0x8000000000000000", "0x8000000000000001"), held("0x7fffffffffffffff", "0x8000000000000001")
	if one < watchSize || two-one != placeSize {
		t.Errorf("a watch with one place holds %d bytes, and one with two %d", one, two)
	}
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
