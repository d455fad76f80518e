package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// rivalFeed is a feed that upstream may outrun.
type rivalFeed struct {
	*rawFeed
	leaves, late atomic.Bool
	age          atomic.Int64
	mu           sync.Mutex
	answers      []string
}

// Leaves implements Feed.
func (f *rivalFeed) Leaves(watchcache.Work) bool { return f.leaves.Load() }

// Fresh implements Feed.
func (f *rivalFeed) Fresh(_ context.Context, _ *watchcache.Work) (watchcache.Snapshot, error) {
	if f.late.Load() {
		return watchcache.Snapshot{}, errors.New("it takes too long")
	}
	return f.cache.Snapshot()
}

// Recent implements Feed.
func (f *rivalFeed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	if age = time.Duration(f.age.Load()); age == 0 {
		return s, 0, false
	}
	s, err := f.cache.Snapshot()
	return s, age, err == nil
}

// Answered implements Feed.
func (f *rivalFeed) Answered(s watchcache.Work, took time.Duration, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = append(f.answers, fmt.Sprintf("%d objects, long: %t, ok: %t", s.Objects, took > time.Second, ok))
}

func (f *rivalFeed) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := f.answers
	f.answers = nil
	return told
}

// rivalFeeds have one feed in JSON.
type rivalFeeds struct {
	oneFeed
	recent map[object.Encoding]bool
}

// AnswersGets implements Feeds.
func (f rivalFeeds) AnswersGets(_ schema.GroupVersionResource, _ object.Want, e object.Encoding) bool {
	return f.recent[e]
}

const rivalObjects = 10

// rival returns a server with a rivalFeed, and its client.
func rival(t *testing.T, upstream http.HandlerFunc, recent ...object.Encoding) (*rivalFeed, *Server, func(path, accept string) *http.Response) {
	t.Helper()
	c, _ := cachetest.ConfigMaps(t, rivalObjects)
	feed := &rivalFeed{rawFeed: &rawFeed{c}}
	feeds := rivalFeeds{oneFeed{feed: feed}, map[object.Encoding]bool{}}
	for _, e := range recent {
		feeds.recent[e] = true
	}
	s, l := serveFeeds(t, feeds, upstream, testLimits(), nil)
	client := clientTo(t, l, "http/1.1")
	client.DisableCompression = true
	return feed, s, func(path, accept string) *http.Response { return client.open(t, path, "Accept", accept) }
}

const (
	rivalPath = "/api/v1/namespaces/a/configmaps"
	anyJSON   = "application/json"
)

// If a feed left a list to upstream or was too slow for it, the feed records upstream's time. It
// also records the lists that upstream failed to answer. The client's reading time does not count.
func TestFeedsAreToldOfAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size, code atomic.Int64
		feed, _, get := rival(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(int(code.Load()))
			_, _ = w.Write(bytes.Repeat([]byte("x"), int(size.Load())))
		})
		for _, test := range []struct {
			what, path string
			size, code int64
			slow       time.Duration
			left       bool
			want       string
		}{
			{"short", rivalPath, 100, 200, 0, true, "[10 objects, long: false, ok: true]"},
			{"of 60 KiB", rivalPath, 60 << 10, 200, 0, true, "[10 objects, long: false, ok: true]"},
			{"long and read slowly", rivalPath, 8 << 20, 200, 2 * time.Second, true, "[10 objects, long: false, ok: true]"},
			{"failed", rivalPath, 100, 500, 0, true, "[10 objects, long: false, ok: false]"},
			{"refused", rivalPath, 100, 429, 0, true, "[10 objects, long: false, ok: false]"},
			{"too large a limit", rivalPath + "?limit=3", 100, 200, 0, true, "[3 objects, long: false, ok: true]"},
			{"selective", rivalPath + "?limit=1&labelSelector=a", 100, 200, 0, true, "[10 objects, long: false, ok: true]"},
			{"late", rivalPath, 100, 200, 0, false, "[10 objects, long: false, ok: true]"},
			{"at a resourceVersion of its own", rivalPath + "?resourceVersion=99999999", 100, 200, 0, false, "[]"},
			{"a get", rivalPath + "/c-000000", 100, 200, 0, true, "[]"},
			{"not found", rivalPath, 100, 404, 0, true, "[]"},
		} {
			size.Store(test.size)
			code.Store(test.code)
			feed.leaves.Store(test.left)
			feed.late.Store(!test.left)
			resp := get(test.path, anyJSON)
			time.Sleep(test.slow)
			if n, err := io.Copy(io.Discard, resp.Body); n != test.size || err != nil {
				t.Errorf("%s: %d bytes, %v", test.what, n, err)
			}
			_ = resp.Body.Close()
			if got := fmt.Sprint(feed.told()); got != test.want {
				t.Errorf("%s: told %s, want %s", test.what, got, test.want)
			}
		}
	})
}

// Upstream receives at most soonerMost lists at a time. The cache answers all further lists.
func TestFewListsGoSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var asked atomic.Int64
		feed, s, get := rival(t, func(http.ResponseWriter, *http.Request) {
			asked.Add(1)
			<-answer
		})
		feed.leaves.Store(true)
		var all sync.WaitGroup
		const crowd = soonerMost + 10
		done := make(chan struct{}, crowd)
		for i := range crowd {
			all.Go(func() {
				_ = get(rivalPath+"?labelSelector=a!="+strconv.Itoa(i), anyJSON).Body.Close()
				done <- struct{}{}
			})
		}
		synctest.Wait()
		if n := asked.Load(); n != soonerMost || len(done) != crowd-soonerMost {
			t.Errorf("%d lists are left to upstream and %d are answered, want %d and %d", n, len(done), soonerMost, crowd-soonerMost)
		}
		close(answer)
		all.Wait()
		synctest.Wait()
		if n := s.queues.sooner.Taken(); n != 0 {
			t.Errorf("%d slots are taken after the end", n)
		}
	})
}

// A list that upstream would refuse, or that would wait, is answered by the cache.
func TestListsOfABusyUserStay(t *testing.T) {
	for _, test := range []struct {
		what string
		busy func(*Server)
		want string
	}{
		{"idle", func(*Server) {}, "upstream"},
		{"all slots are taken", func(s *Server) {
			for s.queues.forwards.Try(fair.Claim{Size: 1}) {
			}
		}, ""},
		{"requests were given up", func(s *Server) {
			for range givenUpMost {
				s.countGivenUp("")
			}
		}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			feed, s, get := rival(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("From", "upstream") })
			feed.leaves.Store(true)
			test.busy(s)
			resp := get(rivalPath, anyJSON)
			_ = resp.Body.Close()
			if from := resp.Header.Get("From"); from != test.want || resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %d from %q", test.what, resp.StatusCode, from)
			}
		})
	}
}

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
			feed, _, get := rival(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("From", "upstream") }, test.recent)
			for _, age := range []time.Duration{time.Second, 0} { // of the state; 0 if it is no longer recent
				feed.age.Store(int64(age))
				resp := get(rivalPath+"/c-000000", test.accept)
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
		feed, _, get := rival(t, func(http.ResponseWriter, *http.Request) {}, object.JSON)
		feed.age.Store(int64(1500 * time.Millisecond))
		for path, want := range map[string]string{
			rivalPath: "2", rivalPath + "?limit=1": "2", rivalPath + "/c-000000": "2", rivalPath + "/missing": "2",
			rivalPath + "?resourceVersion=0": "", rivalPath + "/c-000000?resourceVersion=0": "", rivalPath + "?resourceVersion=5": "",
		} {
			resp := get(path, anyJSON)
			_ = resp.Body.Close()
			if got := resp.Header.Get("Age"); got != want {
				t.Errorf("%s: %s with an age of %q, want %q", path, resp.Status, got, want)
			}
		}
	})
}

// If upstream stops answering, the cache answers the lists that were left to upstream, and the feed
// records the failure.
func TestCacheAnswersForSilentUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		feed, _, get := rival(t, func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-answer:
			case <-r.Context().Done():
			}
		})
		defer close(answer)
		feed.leaves.Store(true)
		resp := get(rivalPath, anyJSON)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"c-000009"`)) {
			t.Errorf("%s, %v: %.200s", resp.Status, err, body)
		}
		if got, want := fmt.Sprint(feed.told()), "[10 objects, long: true, ok: false]"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
	})
}

// The cache also answers the lists that have waited for the response to an equal list.
func TestCacheAnswersAllForSilentUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, _, get := rival(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		feed.leaves.Store(true)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				resp := get(rivalPath, anyJSON)
				defer resp.Body.Close()
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%s, %v", resp.Status, err)
				}
			})
		}
		all.Wait()
	})
}
