package forward

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

func TestShareKey(t *testing.T) {
	rt := exchange.ParseRoute("GET", "/api/v1/namespaces/a/pods")
	base := func() *exchange.Request {
		return &exchange.Request{Method: "GET", Target: "/api/v1/namespaces/a/pods", Route: rt, Header: http.Header{"Accept": {"application/json"}, "User-Agent": {"a"}}}
	}
	key, ok := shareKey(base())
	if !ok {
		t.Fatal("a plain list is not shared")
	}
	for name, change := range map[string]func(*exchange.Request){
		"another target":        func(r *exchange.Request) { r.Target += "?limit=1" },
		"another form":          func(r *exchange.Request) { r.Header.Set("Accept", "application/yaml") },
		"another encoding":      func(r *exchange.Request) { r.Header.Set("Accept-Encoding", "gzip") },
		"indented":              func(r *exchange.Request) { r.Header.Set("User-Agent", "curl/8") },
		"an identity":           func(r *exchange.Request) { r.Header.Set("Authorization", "Bearer x") },
		"another user":          func(r *exchange.Request) { r.Header.Set("Impersonate-User", "x") },
		"a header unknown here": func(r *exchange.Request) { r.Header.Set("X-Remote-User", "x") },
		"two forms":             func(r *exchange.Request) { r.Header["Accept"] = []string{"application/yaml", "application/json"} },
		"a hidden form":         func(r *exchange.Request) { r.Header.Set("Connection", "accept") },
		"a malformed query":     func(r *exchange.Request) { r.Target, r.Query = r.Target+"?x=%zz", "x=%zz" },
		"a write":               func(r *exchange.Request) { r.Method = "POST" },
		"a body":                func(r *exchange.Request) { r.Body = &exchange.Body{} },
	} {
		r := base()
		change(r)
		if other, ok := shareKey(r); ok && other == key {
			t.Errorf("%s is shared", name)
		}
	}
	r := base()
	r.Header.Set("User-Agent", "b")
	r.Header.Set("Audit-Id", "b")
	if other, ok := shareKey(r); !ok || other != key {
		t.Error("another client of the same kind asks alone")
	}
	for path, want := range map[string]bool{
		"/api/v1/namespaces/a/pods/p/log": false, "/api": true, "/apis": true, "/api/v1": true, "/apis/apps/v1": true, "/version": true,
		"/openapi/v2": true, "/openapi/v3/apis/apps/v1": true, "/healthz": false, "/metrics": false, "/api/v1/watch": false, "/apisx": false,
	} {
		r := base()
		r.Target, r.Path, r.Route = path, path, exchange.ParseRoute("GET", path)
		plain, ok := shareKey(r)
		if ok != want {
			t.Errorf("%s is shared: %t", path, ok)
		}
		for _, header := range conditions {
			r.Header.Set(header, `"a"`)
			key, ok := shareKey(r)
			if ok != want || ok && key == plain {
				t.Errorf("%s with %s is shared: %t, as %q", path, header, ok, key)
			}
			plain = key
		}
	}
	r.Header.Set("If-None-Match", `"a"`)
	if _, ok := shareKey(r); ok {
		t.Error("a list with a condition is shared")
	}
}

// list lists pods, and shares the response that send gets.
func (s *Sharing) list(ctx context.Context, a *Attempt, send func(context.Context, *Attempt) *exchange.Response) *exchange.Response {
	req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/pods", Path: "/api/v1/pods", Header: http.Header{}}
	req.Route = exchange.ParseRoute(req.Method, req.Path)
	resp, flight := s.Join(ctx, req, a)
	switch {
	case resp != nil:
		return resp
	case flight == nil:
		return send(ctx, a)
	}
	defer flight.Land()
	if !flight.Crowded() {
		return send(ctx, a)
	}
	ctx, _ = flight.Request(context.Background(), a)
	return flight.Share(send(ctx, a), a)
}

// Upstream has seen one of the requests that share a response. This request keeps upstream's
// Audit-Id, which is also in upstream's audit log. The other requests have their own.
func TestAuditIDsOfASharedAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, sent, s := make(chan struct{}), 0, &Sharing{}
		send := func(_ context.Context, a *Attempt) *exchange.Response {
			defer a.Release()
			if sent++; sent == 1 {
				<-gate
			}
			answer := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			answer.Header.Set("Audit-Id", fmt.Sprint("upstream's ", sent))
			answer.Body = &exchange.Reader{ReadCloser: io.NopCloser(strings.NewReader("x")), Length: 1}
			return answer
		}
		var all sync.WaitGroup
		var answers [4]*exchange.Response
		for i := range answers {
			all.Go(func() { answers[i] = s.list(t.Context(), &Attempt{}, send) })
			synctest.Wait()
		}
		close(gate)
		all.Wait()
		shared := 0
		for i, answer := range answers {
			if id := answer.Header.Get("Audit-Id"); strings.HasPrefix(id, "upstream's") == answer.Unseen || id == "" {
				t.Errorf("%d: upstream has not seen the request: %t, its Audit-Id is %q", i, answer.Unseen, id)
			}
			if answer.Unseen {
				shared++
			}
		}
		if shared == 0 {
			t.Error("no answer was shared")
		}
	})
}

// Each request that waits for a shared response is released once: the one that is sent, those that share,
// and one whose client leaves. The sent one has ended then.
func TestSharingRequestsAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, s := make(chan struct{}), &Sharing{}
		var sent []context.Context
		send := func(ctx context.Context, a *Attempt) *exchange.Response {
			defer a.Release()
			if sent = append(sent, ctx); len(sent) == 1 {
				<-gate
			}
			answer := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			answer.Body = &exchange.Reader{ReadCloser: io.NopCloser(strings.NewReader("x")), Length: 1}
			return answer
		}
		var all sync.WaitGroup
		var released [5]int
		leaving, leave := context.WithCancel(t.Context())
		for i := range released {
			ctx := t.Context()
			if i == 2 {
				ctx = leaving
			}
			all.Go(func() { s.list(ctx, toldOf(&Attempt{}, func() { released[i]++ }), send) })
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		if released != [5]int{2: 1} {
			t.Errorf("released when one has left: %v", released)
		}
		close(gate)
		all.Wait()
		if released != [5]int{1, 1, 1, 1, 1} {
			t.Errorf("released in the end: %v", released)
		}
		if len(sent) != 2 || sent[1].Err() == nil {
			t.Errorf("%d requests were sent, and the shared one has not ended", len(sent))
		}
	})
}

// While a response that is too long to share is read, its client is watched. Afterwards it is not,
// because another request may follow on the connection.
func TestClientOfALongResponseIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Sharing
		client := &watchedClient{}
		rt := exchange.ParseRoute(http.MethodGet, "/api/v1/pods")
		join := func(req *exchange.Request, a *Attempt) (*exchange.Response, *Flight) {
			req.Method, req.Target, req.Path, req.Header = http.MethodGet, "/api/v1/pods", "/api/v1/pods", http.Header{}
			req.Route = rt
			return s.Join(t.Context(), req, a)
		}
		_, first := join(&exchange.Request{}, &Attempt{})
		var all sync.WaitGroup
		all.Go(func() {
			a := &Attempt{}
			_, flight := join(&exchange.Request{Client: client}, a)
			flight.Request(t.Context(), a)
			resp := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			resp.Body = &exchange.Reader{ReadCloser: io.NopCloser(http.NoBody), Length: shareMax + 1}
			flight.Share(resp, a)
			flight.Land()
			if n := client.watched.Load(); n != 1 {
				t.Errorf("%d watch the client while it reads", n)
			}
			a.Release()
			if n := client.watched.Load(); n != 0 {
				t.Errorf("%d watch the client after its response", n)
			}
		})
		synctest.Wait()
		first.Land()
		all.Wait()
	})
}
