package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// watchedClient counts its watchers and interruptions.
type watchedClient struct{ watched, began, interrupted atomic.Int64 }

func (c *watchedClient) WhenGone(context.CancelFunc) (stop func()) {
	c.began.Add(1)
	c.watched.Add(1)
	return func() { c.watched.Add(-1) }
}

func (c *watchedClient) Interrupt() { c.interrupted.Add(1) }

// A fully sent request is not interrupted, even if the transport has not seen its end yet:
// that would make the client's connection unusable.
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

// A request that is not sent upstream leaves its client's connection alone.
func TestUnsentRequestIsNotWatched(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	f, err := forwarderTo(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	client := &watchedClient{}
	resp := f.forward(t.Context(), nil, &exchange.Request{
		Method: http.MethodGet, Target: "/api", Header: http.Header{}, Client: client,
		Identity: &exchange.Identity{Caller: &access.Caller{}, ActsAs: &user.DefaultInfo{Name: "a\nb"}},
	}, &trip{}, func() {})
	if resp.Source != exchange.FromProxy || client.began.Load() != 0 {
		t.Errorf("answer %d from %s, the client was watched %d times", resp.Status, resp.Source, client.began.Load())
	}
}

// A forwarded request ends when its client leaves.
func TestForwardEndsWithItsClient(t *testing.T) {
	type stage struct{ method, path, protocol, answer string }
	var stages []stage
	for _, protocol := range []string{"http/1.1", "h2"} {
		for _, answer := range []string{"", "it has begun"} {
			stages = append(stages, stage{http.MethodGet, "/api/v1/namespaces/a/pods/b", protocol, answer},
				stage{http.MethodGet, "/version", protocol, answer}, stage{http.MethodPost, "/api/v1/namespaces/a/pods", protocol, answer})
		}
	}
	body := map[string]string{http.MethodPost: "{}"}
	for _, stage := range stages {
		t.Run(strings.Join([]string{stage.method, stage.path, stage.protocol, stage.answer}, " "), func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan bool, 1)
			s, address := serveForwards(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if stage.answer != "" {
					_, _ = io.WriteString(w, stage.answer)
					_ = http.NewResponseController(w).Flush()
				}
				leave()
				select {
				case <-r.Context().Done():
					ended <- true
				case <-time.After(testWait):
					ended <- false
				}
			}, testLimits())
			req, err := http.NewRequestWithContext(ctx, stage.method, "https://"+address.String()+stage.path, strings.NewReader(body[stage.method]))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if resp, err := protocolTransport(t, stage.protocol).RoundTrip(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if !<-ended {
				t.Error("upstream's request goes on")
			}
			waitFor(t, "the place is free", func() bool { return s.places.Taken() == 0 })
		})
	}
}
