package proxy

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// recentFeed is a feed that may answer from a recent state.
type recentFeed struct {
	*rawFeed
	age atomic.Int64 // 0 if there is no recent state
}

// Recent implements Feed.
func (f *recentFeed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	if age = time.Duration(f.age.Load()); age == 0 {
		return s, 0, false
	}
	s, err := f.cache.Snapshot()
	return s, age, err == nil
}

// recentFeeds have one feed in JSON.
type recentFeeds struct {
	oneFeed
	recent map[object.Encoding]bool
}

// AnswersGets implements Feeds.
func (f recentFeeds) AnswersGets(_ schema.GroupVersionResource, _ object.Want, e object.Encoding) bool {
	return f.recent[e]
}

const recentObjects = 10

// recentFrom returns a server with a recentFeed, and its client.
func recentFrom(t *testing.T, upstream http.HandlerFunc, recent ...object.Encoding) (*recentFeed, *Server, func(path, accept string) *http.Response) {
	t.Helper()
	c, _ := cachetest.ConfigMaps(t, recentObjects)
	feed := &recentFeed{rawFeed: &rawFeed{c}}
	feeds := recentFeeds{oneFeed{feed: feed}, map[object.Encoding]bool{}}
	for _, e := range recent {
		feeds.recent[e] = true
	}
	s, l := serveFeeds(t, feeds, upstream, testLimits(), nil)
	client := clientTo(t, l, "http/1.1")
	client.DisableCompression = true
	return feed, s, func(path, accept string) *http.Response { return client.open(t, path, "Accept", accept) }
}

const (
	recentPath = "/api/v1/namespaces/a/configmaps"
	anyJSON    = "application/json"
)

// A recent state answers gets in the form that the apiserver would choose. Otherwise upstream answers.
func TestGetsOfARecentStateInTheirForm(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	for _, test := range []struct {
		recent       object.Encoding
		accept, from string
	}{
		{object.JSON, anyJSON, "cache"},
		{object.JSON, protobuf + "," + anyJSON, "upstream"},
		{object.Protobuf, anyJSON, "upstream"},
		// There are no rows.
		{object.JSON, "application/json;as=Table;g=meta.k8s.io;v=v1," + anyJSON, "upstream"},
	} {
		synctest.Test(t, func(t *testing.T) {
			feed, _, get := recentFrom(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("From", "upstream") }, test.recent)
			for _, age := range []time.Duration{time.Second, 0} { // of the state; 0 if it is no longer recent
				feed.age.Store(int64(age))
				resp := get(recentPath+"/c-000000", test.accept)
				_ = resp.Body.Close()
				if upstream := resp.Header.Get("From") != ""; upstream != (test.from == "upstream" || age == 0) {
					t.Errorf("%s, age %v: answered by upstream: %t, want %s", test.accept, age, upstream, test.from)
				}
			}
		})
	}
}

// A feed may have a recent state that configuration allows. Only reads of the most recent state
// receive that older state, with its age, even if it lacks the object.
func TestAgeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, _, get := recentFrom(t, func(http.ResponseWriter, *http.Request) {}, object.JSON)
		feed.age.Store(int64(1500 * time.Millisecond))
		for path, want := range map[string]string{
			recentPath: "2", recentPath + "?limit=1": "2", recentPath + "/c-000000": "2", recentPath + "/missing": "2",
			recentPath + "?resourceVersion=0": "", recentPath + "/c-000000?resourceVersion=0": "", recentPath + "?resourceVersion=5": "",
		} {
			resp := get(path, anyJSON)
			_ = resp.Body.Close()
			if got := resp.Header.Get("Age"); got != want {
				t.Errorf("%s: %s with an age of %q, want %q", path, resp.Status, got, want)
			}
		}
	})
}
