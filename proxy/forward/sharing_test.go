package forward

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

func TestBuffer(t *testing.T) {
	const limit = 10
	for name, test := range map[string]struct {
		from   io.Reader
		length int64
		shared bool
	}{
		"empty":         {strings.NewReader(""), 0, true},
		"short":         {strings.NewReader("012345678"), -1, true},
		"full":          {strings.NewReader("0123456789"), 10, true},
		"long":          {strings.NewReader("0123456789a"), -1, false},
		"known as long": {strings.NewReader("0123456789a"), 11, false},
		"broken":        {io.MultiReader(strings.NewReader("0123"), iotest.ErrReader(io.ErrUnexpectedEOF)), 8, false},
	} {
		t.Run(name, func(t *testing.T) {
			var all strings.Builder
			closed := 0
			r := &exchange.Response{Source: exchange.FromUpstream, Length: test.length, Reader: struct {
				io.Reader
				io.Closer
			}{io.TeeReader(test.from, &all), closer(func() { closed++ })}}
			err := r.Buffer(limit)
			if (err == nil) != test.shared {
				t.Fatalf("buffer: %v", err)
			}
			if test.shared {
				if string(r.Bytes) != all.String() || r.Reader != nil || closed != 1 {
					t.Errorf("%q of %q, closed %d times", r.Bytes, all.String(), closed)
				}
				return
			}
			rest, err := io.ReadAll(r.Reader)
			if (err != nil) != (name == "broken") || string(rest) != all.String() || closed != 0 {
				t.Errorf("%q of %q: %v, closed %d times", rest, all.String(), err, closed)
			}
		})
	}
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

// A panic while a response is read closes the response and gives its room back.
func TestBufferPanics(t *testing.T) {
	closed := 0
	memory := fair.NewPool(100<<20, false)
	s := &Sharing{
		Crowded: func() bool { return true },
		Send: func(context.Context, *exchange.Request, exchange.Route, *Attempt) *exchange.Response {
			return &exchange.Response{Source: exchange.FromUpstream, Length: -1, Reader: struct {
				io.Reader
				io.Closer
			}{nil, closer(func() { closed++ })}}
		},
	}
	func() {
		defer func() { _ = recover() }()
		req := &exchange.Request{Method: http.MethodGet, Header: http.Header{}, Memory: memory.Holding("")}
		defer req.Free()
		s.Forward(t.Context(), req, exchange.Route{Resource: true}, &Attempt{})
		t.Error("no panic")
	}()
	if n := memory.Taken(); n != 0 || closed != 1 {
		t.Errorf("%d bytes are taken, closed %d times", n, closed)
	}
}

func TestShareKey(t *testing.T) {
	rt := exchange.ParseRoute("GET", "/api/v1/namespaces/a/pods")
	base := func() *exchange.Request {
		return &exchange.Request{Method: "GET", Target: "/api/v1/namespaces/a/pods", Header: http.Header{"Accept": {"application/json"}, "User-Agent": {"a"}}}
	}
	key, ok := shareKey(base(), rt)
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
		if other, ok := shareKey(r, rt); ok && other == key {
			t.Errorf("%s is shared", name)
		}
	}
	r := base()
	r.Header.Set("User-Agent", "b")
	r.Header.Set("Audit-Id", "b")
	if other, ok := shareKey(r, rt); !ok || other != key {
		t.Error("another client of the same kind asks alone")
	}
	for path, want := range map[string]bool{
		"/api/v1/namespaces/a/pods/p/log": false, "/api": true, "/apis": true, "/api/v1": true, "/apis/apps/v1": true, "/version": true,
		"/openapi/v2": true, "/openapi/v3/apis/apps/v1": true, "/healthz": false, "/metrics": false, "/api/v1/watch": false, "/apisx": false,
	} {
		r := base()
		r.Target, r.Path = path, path
		if _, ok := shareKey(r, exchange.ParseRoute("GET", path)); ok != want {
			t.Errorf("%s is shared: %t", path, ok)
		}
	}
}

// Reads of discovery and OpenAPI share a response if they have the same form and the same
// condition. Reads of resources with a condition are unusual, so they do not share.
func TestConditionalReadsShare(t *testing.T) {
	ask := func(path, header, value string) (string, bool) {
		r := &exchange.Request{Method: "GET", Target: path, Path: path, Header: http.Header{"Accept-Encoding": {"gzip"}}}
		if header != "" {
			r.Header.Set(header, value)
		}
		return shareKey(r, exchange.ParseRoute("GET", path))
	}
	for _, path := range []string{"/api", "/apis", "/apis/apps/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"} {
		keys := map[string]bool{}
		for _, of := range [][2]string{{}, {"If-None-Match", `"a"`}, {"If-None-Match", `"b"`}, {"If-Modified-Since", "Sat, 28 Nov 2026 18:00:00 GMT"}} {
			key, ok := ask(path, of[0], of[1])
			again, _ := ask(path, of[0], of[1])
			if !ok || key != again || keys[key] {
				t.Errorf("%s with %v: shared: %t, %q and %q", path, of, ok, key, again)
			}
			keys[key] = true
		}
	}
	if _, ok := ask("/api/v1/pods", "If-None-Match", `"a"`); ok {
		t.Error("a list with a condition is shared")
	}
}

func newSharing(t *testing.T) *Sharing {
	return &Sharing{Serving: t.Context(), Shared: func() {}, Crowded: func() bool { return false }}
}

func (s *Sharing) list(ctx context.Context) *exchange.Response {
	req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/pods", Path: "/api/v1/pods", Header: http.Header{}}
	return s.share(ctx, req, exchange.ParseRoute(req.Method, req.Path), &Attempt{})
}

// Upstream has seen one of the requests that share a response. This request keeps upstream's
// Audit-Id, which is also in upstream's audit log. The other requests have their own.
func TestAuditIDsOfASharedAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, sent, s := make(chan struct{}), 0, newSharing(t)
		s.Send = func(_ context.Context, _ *exchange.Request, _ exchange.Route, t *Attempt) *exchange.Response {
			defer t.Release()
			if sent++; sent == 1 {
				<-gate
			}
			answer := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			answer.Header.Set("Audit-Id", fmt.Sprint("upstream's ", sent))
			answer.Reader, answer.Length = io.NopCloser(strings.NewReader("x")), 1
			return answer
		}
		var all sync.WaitGroup
		var answers [4]*exchange.Response
		for i := range answers {
			all.Go(func() { answers[i] = s.list(t.Context()) })
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
		gate, s := make(chan struct{}), newSharing(t)
		var sent []context.Context
		s.Send = func(ctx context.Context, _ *exchange.Request, _ exchange.Route, a *Attempt) *exchange.Response {
			defer a.Release()
			if sent = append(sent, ctx); len(sent) == 1 {
				<-gate
			}
			answer := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			answer.Reader, answer.Length = io.NopCloser(strings.NewReader("x")), 1
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
			all.Go(func() {
				req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/pods", Path: "/api/v1/pods", Header: http.Header{}}
				s.share(ctx, req, exchange.ParseRoute(req.Method, req.Path), toldOf(&Attempt{}, func() { released[i]++ }))
			})
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
