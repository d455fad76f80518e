package proxy

import (
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// testLimits are the limits of test servers.
func testLimits() exchange.Limits {
	return exchange.Limits{
		HeaderBytes: 64 << 10,
		Read:        time.Minute, Write: time.Minute, Idle: time.Minute, Stall: time.Minute,
		Connections: 1000, UserConnections: 1000, UserWatches: 1000, Forwards: 100,
	}
}

// watchesOf returns the number of watches of each user.
func watchesOf(s *Server) map[string]int {
	s.limits.watches.mu.Lock()
	defer s.limits.watches.mu.Unlock()
	return maps.Clone(s.limits.watches.mu.held)
}

// A forwarded watch or log counts as one of its user's watches while it is open.
func TestLastingForwardsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.UserWatches = 1
		s, address := serveForwards(t, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, limits)
		first := dialTLS(t, address)
		send(t, first, "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		waitFor(t, "the watch is counted", func() bool { return watchesOf(s)[""] == 1 })
		if resp := clientTo(t, address, "http/1.1").open(t, podsPath+"/p/log?follow=1"); resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("another one: %s", resp.Status)
		}
		_ = first.Close()
		waitFor(t, "the watch is forgotten", func() bool { return len(watchesOf(s)) == 0 })
	})
}

// A user is counted until all its items are given back. Each item counts once. Then the user is
// removed.
func TestPerUserCounts(t *testing.T) {
	var h perUserCounts
	first, ok := h.take("a", 2)
	second, ok2 := h.take("a", 2)
	if _, ok3 := h.take("a", 2); !ok || !ok2 || ok3 {
		t.Fatalf("%v %v %v, want two of three", ok, ok2, ok3)
	}
	if _, ok := h.take("b", 1); !ok {
		t.Fatal("another user is refused")
	}
	first()
	first()
	third, ok := h.take("a", 2)
	if _, more := h.take("a", 2); !ok || more {
		t.Fatalf("%v %v, want one more after one was given back twice", ok, more)
	}
	second()
	third()
	if n := len(h.mu.held); n != 1 {
		t.Errorf("%d users are remembered, want b alone", n)
	}
}
