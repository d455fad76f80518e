package proxy

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// userNamed returns the figures of a user.
func userNamed(s *Server, name string) metrics.User {
	for _, u := range s.Users().Users {
		if u.Name == name {
			return u
		}
	}
	return metrics.User{}
}

// Each user's requests, connections, and waits for upstream count as that user's.
func TestUsersOfForwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.Forwards, limits.UserConnections = 1, 1
		gate := make(chan struct{})
		s, address := serveFeeds(t, forwardsAll{}, func(http.ResponseWriter, *http.Request) { <-gate }, limits, judging(t))
		var asking sync.WaitGroup
		ask := func(user string) {
			client := clientTo(t, address, "h2")
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), testWait)
				defer cancel()
				if code, err := client.send(ctx, user, http.MethodGet, podsPath+"/p", nil); code != http.StatusOK || err != nil {
					t.Errorf("%s: %d, %v", user, code, err)
				}
			})
		}
		ask("first")
		synctest.Wait() // upstream has the first
		ask("second")
		synctest.Wait() // the second waits
		if resp, _ := clientTo(t, address, "h2").get(t, podsPath+"/p", credentials("first")...); resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("a connection above the limit: %s", resp.Status)
		}
		time.Sleep(7 * time.Second)
		close(gate)
		asking.Wait()
		synctest.Wait() // all are counted
		first, second := userNamed(s, "first"), userNamed(s, "second")
		if first.Requests != 2 || first.Connections != 1 || first.Limited != 1 || first.Waits != (metrics.Waits{}) {
			t.Errorf("first: %+v", first)
		}
		if second.Requests != 1 || second.Connections != 1 || second.Limited != 0 || second.Waits.Upstream != 7 || second.ProcessorSeconds != 0 {
			t.Errorf("second: %+v", second)
		}
	})
}

// An expensive read uses processor time, and may wait for it.
func TestUsersOfExpensiveReads(t *testing.T) {
	cache, _ := cachetest.ConfigMaps(t, 2000)
	s, address := serveFeeds(t, oneFeed{feed: &rawFeed{cache}}, http.NotFound, testLimits(), nil)
	client := clientTo(t, address, "h2")
	read := func(query string) {
		code, err := client.send(t.Context(), "", http.MethodGet, "/api/v1/namespaces/a/configmaps?resourceVersion=0"+query, nil)
		if code != http.StatusOK || err != nil {
			t.Errorf("%d, %v", code, err)
		}
	}
	read("&limit=1")
	if u := userNamed(s, ""); u.Requests != 1 || u.ProcessorSeconds != 0 {
		t.Errorf("cheap: %+v", u)
	}
	all := s.queues.reads.Capacity
	if err := s.queues.reads.Take(t.Context(), fair.Claim{User: "holder", Size: all}); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	asking.Go(func() { read("&labelSelector=" + expensiveSelector()) })
	waitFor(t, "it waits", func() bool { return s.queues.reads.Waiting() == 1 })
	s.queues.reads.Give("holder", all)
	asking.Wait()
	if u := userNamed(s, ""); u.Requests != 2 || u.ProcessorSeconds <= 0 || u.Waits.Processors <= 0 || u.Waits.Upstream != 0 {
		t.Errorf("expensive: %+v", u)
	}
}
