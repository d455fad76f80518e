package forward

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// watchedClient counts its watchers and interruptions.
type watchedClient struct{ watched, began, interrupted atomic.Int64 }

func (c *watchedClient) CancelWhenGone(context.CancelFunc) (stop func()) {
	c.began.Add(1)
	c.watched.Add(1)
	return func() { c.watched.Add(-1) }
}

func (c *watchedClient) Interrupt() { c.interrupted.Add(1) }

// A fully sent request is not interrupted, even if the transport has not seen its end yet. An
// interruption would make the client's connection unusable.
func TestFullySentRequestIsNotInterrupted(t *testing.T) {
	for all, want := range map[bool]int64{true: 0, false: 1} {
		synctest.Test(t, func(t *testing.T) {
			client := &watchedClient{}
			x := &roundTrip{Request: &exchange.Request{Client: client, Body: &exchange.Body{}}, cancel: func() {}, bodyDone: make(chan struct{}), stopWatch: func() {}}
			x.Body.Ended.Store(all)
			go x.finish()
			synctest.Wait()
			if got := client.interrupted.Load(); got != want {
				t.Errorf("a client that had sent all (%t) of its request was interrupted %d times, want %d", all, got, want)
			}
			close(x.bodyDone)
		})
	}
}

// If a request is not sent, the forwarder does not touch its client's connection.
func TestUnsentRequestIsNotWatched(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	f, err := New(config, func(adapt Adaptation) (http.RoundTripper, error) { return rest.TransportFor(adapt(config)) })
	if err != nil {
		t.Fatal(err)
	}
	client := &watchedClient{}
	resp := f.Send(t.Context(), nil, &exchange.Request{
		Method: http.MethodGet, Target: "/api", Header: http.Header{}, Client: client,
		Identity: &access.Caller{ActsAs: &user.DefaultInfo{Name: "a\nb"}},
	}, &Trip{}, func() {})
	if resp.Source != exchange.FromProxy || client.began.Load() != 0 {
		t.Errorf("answer %d from %s, the client was watched %d times", resp.Status, resp.Source, client.began.Load())
	}
}
