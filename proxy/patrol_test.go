package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// watchedClient counts by how many it is watched.
type watchedClient struct {
	watched     atomic.Int64
	interrupted atomic.Int64
	gone        context.CancelFunc
}

func (c *watchedClient) whenGone(gone context.CancelFunc) (stop func()) {
	c.watched.Add(1)
	c.gone = gone
	return func() { c.watched.Add(-1) }
}

func (c *watchedClient) interrupt() { c.interrupted.Add(1) }

// A client that has sent all of its request is not interrupted, though the transport need not know yet that this was all:
// its connection would be of no further use.
func TestWhoHasSentAllIsNotInterrupted(t *testing.T) {
	for all, want := range map[bool]int64{true: 0, false: 1} {
		synctest.Test(t, func(t *testing.T) {
			client := &watchedClient{}
			x := &exchange{request: &request{client: client, body: &body{}}, cancel: func() {}, bodyDone: make(chan struct{}), stopWatch: func() {}}
			x.body.ended.Store(all)
			go x.finish()
			synctest.Wait()
			if got := client.interrupted.Load(); got != want {
				t.Errorf("a client that had sent all (%t) of its request was interrupted %d times, want %d", all, got, want)
			}
			close(x.bodyDone)
		})
	}
}

// The clients of requests that take a while are watched, those of others never.
func TestPatrol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p patrol
		begin := func() (*exchange, *watchedClient) {
			c := &watchedClient{}
			x := &exchange{request: &request{client: c}, cancel: func() {}, bodyDone: make(chan struct{}), stopWatch: func() {}}
			close(x.bodyDone)
			p.add(x)
			return x, c
		}
		for round := range 3 {
			var swift []*watchedClient
			slow, client := begin()
			for range 100 {
				x, c := begin()
				swift = append(swift, c)
				time.Sleep(patrolEvery / 20)
				x.finish()
			}
			synctest.Wait()
			for _, c := range swift {
				if c.watched.Load() != 0 || c.gone != nil {
					t.Fatal("the client of a request that is over was watched")
				}
			}
			if client.watched.Load() != 1 {
				t.Fatalf("round %d: the client of a request that takes a while is watched by %d", round, client.watched.Load())
			}
			if slow.finish(); client.watched.Load() != 0 {
				t.Fatal("a client is watched after its request")
			}
			time.Sleep(2 * patrolRest)
			synctest.Wait()
			if p.mu.running {
				t.Fatal("there is a patrol without requests")
			}
		}
	})
}

// A request that is not sent upstream leaves its client's connection alone.
func TestWhoCannotBeNamedIsNotWatched(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	f, err := forwarderTo(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	client := &watchedClient{}
	resp := f.forward(t.Context(), nil, &request{
		method: http.MethodGet, target: "/api", header: http.Header{}, client: client,
		identity: &identity{Caller: &access.Caller{}, actsAs: &user.DefaultInfo{Name: "a\nb"}},
	}, func() {})
	time.Sleep(3 * patrolEvery)
	if resp.source != fromProxy || client.watched.Load() != 0 {
		t.Errorf("answer %d from %s, the client is watched by %d", resp.status, resp.source, client.watched.Load())
	}
}
