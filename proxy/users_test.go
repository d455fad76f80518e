package proxy

import (
	"context"
	"io"
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
		url := "https://" + address.String() + "/api/v1/namespaces/a/pods/p"
		var asking sync.WaitGroup
		ask := func(user string) {
			client := http2To(t, address)
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), testWait)
				defer cancel()
				if code, err := askAs(ctx, client, user, http.MethodGet, url, ""); code != http.StatusOK || err != nil {
					t.Errorf("%s: %d, %v", user, code, err)
				}
			})
		}
		ask("first")
		synctest.Wait() // upstream has the first
		ask("second")
		synctest.Wait() // the second waits
		if code, err := askAs(t.Context(), http2To(t, address), "first", http.MethodGet, url, ""); code != http.StatusTooManyRequests || err != nil {
			t.Errorf("a connection above the limit: %d, %v", code, err)
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
	client := http2To(t, address)
	url := "https://" + address.String() + "/api/v1/namespaces/a/configmaps?resourceVersion=0"
	read := func(query string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+query, http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || err != nil {
			t.Errorf("%d, %v", resp.StatusCode, err)
		}
	}
	read("&limit=1")
	if u := userNamed(s, ""); u.Requests != 1 || u.ProcessorSeconds != 0 {
		t.Errorf("cheap: %+v", u)
	}
	all := s.readSlots.Capacity
	if err := s.readSlots.Take(t.Context(), fair.Claim{User: "holder", Size: all}); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	asking.Go(func() { read("&labelSelector=" + expensiveSelector()) })
	waitFor(t, "it waits", func() bool { return s.readSlots.Waiting() == 1 })
	s.readSlots.Give("holder", all)
	asking.Wait()
	if u := userNamed(s, ""); u.Requests != 2 || u.ProcessorSeconds <= 0 || u.Waits.Processors <= 0 || u.Waits.Upstream != 0 {
		t.Errorf("expensive: %+v", u)
	}
}
