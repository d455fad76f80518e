package sharding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// server is an apiserver with a collection.
type server struct {
	objects int
	gate    bool // ShardedListAndWatch
	custom  bool // whose lists have no shardInfo
	counts  bool // the remaining objects of all shards, as 1.36 does
	lost    bool
	// others is the number of namespaces; below 0, they are forbidden.
	others int
	hung   chan struct{}
	asked  []string
}

var errLost = errors.New("connection refused")

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	s.asked = append(s.asked, query.Get("resourceVersion"))
	if s.hung != nil {
		select {
		case <-s.hung:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	if s.lost {
		return nil, errLost
	}
	objects, custom := s.objects, s.custom
	if strings.HasSuffix(req.URL.Path, "/namespaces") {
		objects, custom = s.others, false
	}
	if objects < 0 {
		return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Header: http.Header{}}, nil
	}
	items, meta := "", `"resourceVersion":"7"`
	if one := strings.Contains(query.Get("shardSelector"), "'0x0000000000000001'"); objects > 0 && (!one || !s.gate) {
		items = "{}"
	}
	if items != "" && objects > 1 {
		if meta += `,"continue":"token"`; !s.gate || s.counts {
			meta += `,"remainingItemCount":1`
		}
	}
	if s.gate && !custom {
		meta += `,"shardInfo":{"selector":"x"}`
	}
	body := fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{%s},"items":[%s]}`, meta, items)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

var pods = &object.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespaced: true}

func (s *server) client() *client.Client {
	return client.New(&url.URL{Scheme: "https", Host: "fake"}, s, client.NewMetrics(prometheus.NewRegistry()))
}

func TestAnswers(t *testing.T) {
	selected := *pods
	selected.Scope = object.Scope{Labels: "app=web"}
	for name, test := range map[string]struct {
		server server
		of     *object.Resource
		want   object.Sharding
		asks   int
	}{
		"without the gate":                   {server{objects: 2}, pods, object.ShardingIgnored, 2},
		"without the gate, custom":           {server{objects: 1, custom: true}, pods, object.ShardingIgnored, 2},
		"with the gate":                      {server{objects: 2, gate: true}, pods, object.ShardingWithPages, 1},
		"with the gate, custom":              {server{objects: 2, gate: true, custom: true}, pods, object.ShardingWithPages, 2},
		"1.36":                               {server{objects: 2, gate: true, counts: true}, pods, object.ShardingWithoutPages, 1},
		"one object has no further page":     {server{objects: 1, gate: true}, pods, object.ShardingWithoutPages, 1},
		"selected objects are never counted": {server{objects: 2, gate: true}, &selected, object.ShardingWithoutPages, 1},
		"empty, with the gate":               {server{gate: true}, pods, object.ShardingWithoutPages, 1},
		"empty, custom, with the gate":       {server{gate: true, custom: true, others: 2}, pods, object.ShardingWithPages, 2},
		"empty, without the gate":            {server{others: 1}, pods, object.ShardingIgnored, 3},
		"empty, namespaces are forbidden":    {server{others: -1}, pods, object.ShardingUnknown, 2},
		"empty, namespaces, too":             {server{}, pods, object.ShardingUnknown, 2},
		"lost":                               {server{objects: 2, lost: true}, pods, object.ShardingUnknown, 1},
	} {
		var answers Answers
		s := &test.server
		if got := answers.Of(t.Context(), s.client(), test.of); got != test.want || len(s.asked) != test.asks {
			t.Errorf("%s: %v after %d requests, want %v after %d", name, got, len(s.asked), test.want, test.asks)
		}
		if n := len(s.asked); test.want == object.ShardingIgnored && s.asked[n-1] != "7" {
			t.Errorf("%s: the second list is at %q, not at the first one's resourceVersion", name, s.asked[n-1])
		}
	}
}

// An answer counts for a minute, and on while upstream does not answer.
func TestRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers Answers
		s := &server{objects: 2, gate: true}
		c := s.client()
		expect := func(want object.Sharding, asks int) {
			t.Helper()
			got := answers.Of(t.Context(), c, pods)
			if synctest.Wait(); got != want || len(s.asked) != asks {
				t.Errorf("%v after %d requests, want %v after %d", got, len(s.asked), want, asks)
			}
		}
		expect(object.ShardingWithPages, 1)
		s.gate = false
		expect(object.ShardingWithPages, 1)
		time.Sleep(ttl)
		expect(object.ShardingIgnored, 3)
		s.gate, s.lost = true, true
		time.Sleep(ttl)
		expect(object.ShardingIgnored, 4)
		s.lost, s.hung = false, make(chan struct{})
		began := time.Now()
		expect(object.ShardingIgnored, 5)
		if waited := time.Since(began); waited != patience {
			t.Errorf("waited %v for a new answer", waited)
		}
		close(s.hung)
		synctest.Wait()
		expect(object.ShardingWithPages, 5)

		s.objects, s.others, s.custom = 0, -1, true
		time.Sleep(ttl)
		expect(object.ShardingUnknown, 7)
		s.objects = 1
		expect(object.ShardingUnknown, 7)
		time.Sleep(unknownTTL)
		expect(object.ShardingWithoutPages, 9)
	})
}

// A caller that gives up does not end the request of the others.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers Answers
		s := &server{objects: 2, hung: make(chan struct{})}
		c := s.client()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := answers.Of(ctx, c, pods); got != object.ShardingUnknown {
			t.Errorf("%v without an answer", got)
		}
		close(s.hung)
		synctest.Wait()
		if got := answers.Of(t.Context(), c, pods); got != object.ShardingIgnored || len(s.asked) != 2 {
			t.Errorf("%v after %d requests", got, len(s.asked))
		}
	})
}
