package sharding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// collection is a collection of an apiserver.
type collection struct {
	objects int // below 0, it is forbidden
	custom  bool
}

// server is an apiserver with two collections.
type server struct {
	namespaces, others collection
	gate               bool // ShardedListAndWatch
	counts             bool // the remaining objects of all shards, as 1.36 does
	lost               bool
	hung               chan struct{}
	mu                 sync.Mutex
	asked              []string // the resources and resourceVersions
}

var errLost = errors.New("connection refused")

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	s.mu.Lock()
	s.asked = append(s.asked, req.URL.Path[len("/api/v1/"):]+query.Get("resourceVersion"))
	s.mu.Unlock()
	if s.hung != nil {
		select {
		case <-s.hung:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	of := s.others
	if strings.HasSuffix(req.URL.Path, "/namespaces") {
		of = s.namespaces
	}
	switch {
	case s.lost:
		return nil, errLost
	case of.objects < 0:
		return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Header: http.Header{}}, nil
	}
	items, meta := "", `"resourceVersion":"7"`
	if one := strings.Contains(query.Get("shardSelector"), "'0x0000000000000001'"); of.objects > 0 && (!one || !s.gate) {
		items = "{}"
	}
	if items != "" && of.objects > 1 {
		if meta += `,"continue":"token"`; !s.gate || s.counts {
			meta += `,"remainingItemCount":1`
		}
	}
	if s.gate && !of.custom {
		meta += `,"shardInfo":{"selector":"x"}`
	}
	body := fmt.Sprintf(`{"kind":"List","apiVersion":"v1","metadata":{%s},"items":[%s]}`, meta, items)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

func (s *server) client() *client.Client {
	return client.New(&url.URL{Scheme: "https", Host: "fake"}, s, client.NewMetrics(prometheus.NewRegistry()))
}

var (
	pods    = &object.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespaced: true}
	customs = &object.Resource{GVR: pods.GVR, Namespaced: true, SelfDescribing: true}
)

func TestAnswers(t *testing.T) {
	selected := *pods
	selected.Scope = object.Scope{Labels: "app=web"}
	forbidden := collection{objects: -1}
	for name, test := range map[string]struct {
		server *server
		of     *object.Resource
		want   object.Sharding
		asked  []string
	}{
		"without the gate": {&server{namespaces: collection{objects: 4}}, pods, object.ShardingIgnored, []string{"namespaces"}},
		"with the gate":    {&server{namespaces: collection{objects: 4}, gate: true}, pods, object.ShardingWithPages, []string{"namespaces"}},
		"1.36":             {&server{namespaces: collection{objects: 4}, gate: true, counts: true}, pods, object.ShardingWithoutPages, []string{"namespaces"}},
		"one namespace":    {&server{namespaces: collection{objects: 1}, gate: true}, pods, object.ShardingWithoutPages, []string{"namespaces"}},
		"lost":             {&server{lost: true}, pods, object.ShardingUnknown, []string{"namespaces", "pods"}},
		"no namespaces, without the gate": {
			&server{namespaces: forbidden, others: collection{objects: 2}}, pods, object.ShardingIgnored, []string{"namespaces", "pods"},
		},
		"no namespaces, with the gate": {
			&server{namespaces: forbidden, others: collection{objects: 2}, gate: true}, pods, object.ShardingWithPages, []string{"namespaces", "pods"},
		},
		"no namespaces, selected objects": {
			&server{namespaces: forbidden, others: collection{objects: 2}, gate: true}, &selected, object.ShardingWithoutPages, []string{"namespaces", "pods"},
		},
		"no namespaces, empty": {&server{namespaces: forbidden}, pods, object.ShardingUnknown, []string{"namespaces", "pods"}},
		"no namespaces, empty, with the gate": {
			&server{namespaces: forbidden, gate: true}, pods, object.ShardingWithoutPages, []string{"namespaces", "pods"},
		},
		"no namespaces, custom, without the gate": {
			&server{namespaces: forbidden, others: collection{2, true}}, customs, object.ShardingIgnored, []string{"namespaces", "pods", "pods7"},
		},
		"no namespaces, custom, with the gate": {
			&server{namespaces: forbidden, others: collection{2, true}, gate: true}, customs, object.ShardingWithPages, []string{"namespaces", "pods", "pods7"},
		},
		"no namespaces, custom, empty": {
			&server{namespaces: forbidden, others: collection{0, true}, gate: true}, customs, object.ShardingUnknown, []string{"namespaces", "pods"},
		},
		"nothing is allowed": {&server{namespaces: forbidden, others: forbidden, gate: true}, pods, object.ShardingUnknown, []string{"namespaces", "pods"}},
	} {
		var answers Answers
		s := test.server
		if got := answers.Of(t.Context(), s.client(), test.of); got != test.want || !slices.Equal(s.asked, test.asked) {
			t.Errorf("%s: %v after %v, want %v after %v", name, got, s.asked, test.want, test.asked)
		}
	}
}

// An answer counts for a minute, and on while upstream does not answer. Then it is asked every five
// seconds.
func TestRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers Answers
		s := &server{namespaces: collection{objects: 2}, gate: true}
		c := s.client()
		expect := func(want object.Sharding, asks int) {
			t.Helper()
			if got := answers.Of(t.Context(), c, pods); got != want || len(s.asked) != asks {
				t.Errorf("%v after %d requests, want %v after %d", got, len(s.asked), want, asks)
			}
		}
		expect(object.ShardingWithPages, 1)
		s.gate = false
		expect(object.ShardingWithPages, 1)
		time.Sleep(ttl)
		expect(object.ShardingIgnored, 2)
		s.gate, s.lost = true, true
		time.Sleep(ttl)
		expect(object.ShardingIgnored, 3)
		expect(object.ShardingIgnored, 3)
		time.Sleep(failedTTL)
		s.lost, s.hung = false, make(chan struct{})
		began := time.Now()
		expect(object.ShardingIgnored, 4)
		if waited := time.Since(began); waited != patience {
			t.Errorf("waited %v for a new answer", waited)
		}
		time.Sleep(failedTTL)
		close(s.hung)
		expect(object.ShardingWithPages, 5)

		answers, s.namespaces = Answers{}, collection{objects: -1}
		expect(object.ShardingWithoutPages, 7)
		time.Sleep(failedTTL)
		expect(object.ShardingWithoutPages, 7) // a right is not gained so soon
		s.gate = false
		time.Sleep(ttl)
		expect(object.ShardingWithoutPages, 9) // the empty collection shows nothing
	})
}

// Of many callers, one asks. The others wait for it, unless they have an old answer.
func TestCallersShareAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers Answers
		s := &server{namespaces: collection{objects: 2}, hung: make(chan struct{})}
		c := s.client()
		var callers sync.WaitGroup
		ask := func(ctx context.Context, want object.Sharding) {
			callers.Go(func() {
				if got := answers.Of(ctx, c, pods); got != want {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		}
		gone, leave := context.WithCancel(t.Context())
		ask(gone, object.ShardingUnknown)
		synctest.Wait()
		for range 10 {
			ask(t.Context(), object.ShardingIgnored)
		}
		synctest.Wait()
		leave()
		synctest.Wait() // the turn passes on
		close(s.hung)
		callers.Wait()
		if n := len(s.asked); n > 3 {
			t.Errorf("%d requests: %v", n, s.asked)
		}
		time.Sleep(ttl)
		s.hung = make(chan struct{})
		ask(t.Context(), object.ShardingIgnored)
		synctest.Wait()
		began := time.Now()
		if got := answers.Of(t.Context(), c, pods); got != object.ShardingIgnored || time.Since(began) > 0 {
			t.Errorf("%v after %v, while another caller asks", got, time.Since(began))
		}
		close(s.hung)
		callers.Wait()
	})
}
