package documents

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an upstream with one document at every path, and copies in front of it.
type world struct {
	*Copies
	mu       sync.Mutex
	version  int // of the document; it is the ETag and the beginning of the body
	status   int // of all responses, 0 for the default
	size     int // of the body
	results  map[string]int
	shared   atomic.Int64
	requests []*exchange.Request
	takes    time.Duration
}

// inWorld runs a test in a bubble. Copies have up to most bytes.
func inWorld(t *testing.T, most int64, test func(*testing.T, *world)) {
	t.Helper()
	const memory = 256 << 20
	synctest.Test(t, func(t *testing.T) {
		w := &world{version: 1, size: 100, results: map[string]int{}}
		w.Copies = New(Config{
			Most: most, Send: w.send, Workspace: fair.NewWorkspace(memory, false, memory), Serving: t.Context(),
			Access: func() *access.Access { return nil }, Shared: func() { w.shared.Add(1) },
			Revalidated: func(result string) { w.set(func() { w.results[result]++ }) },
		})
		test(t, w)
	})
}

// send is upstream. The response shows the state at the request's end, because upstream may do so.
func (w *world) send(ctx context.Context, req *exchange.Request) *exchange.Response {
	w.mu.Lock()
	w.requests = append(w.requests, req)
	takes := w.takes
	w.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return exchange.StatusResponse(exchange.Failure(http.StatusServiceUnavailable, "", "lost"), exchange.FromProxy)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tag := fmt.Sprintf(`"%d"`, w.version)
	resp := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
	resp.Header = http.Header{"Etag": {tag}, "Content-Type": {"application/json"}, "Audit-Id": {"upstream"}, "Vary": {"Accept"}, "Last-Modified": {"then"}}
	switch {
	case w.status != 0:
		resp.Status = w.status
	case req.Query != "" && req.Query != fmt.Sprint("hash=", w.version):
		resp.Status = http.StatusMovedPermanently
	case req.Header.Get("If-None-Match") == tag:
		resp.Status = http.StatusNotModified
		return resp
	case req.Path == "/openapi/v3":
		resp.Header.Del("Etag")
	}
	body := fmt.Sprintf("%d %s", w.version, strings.Repeat("x", w.size))
	if strings.Contains(req.Header.Get("Accept"), "pretty=1") {
		body += "\n"
	}
	resp.Reader, resp.Length = io.NopCloser(strings.NewReader(body)), -1
	return resp
}

func (w *world) sent() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.requests)
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func get(target string, headers ...string) *exchange.Request {
	req := &exchange.Request{Method: http.MethodGet, Target: target, Header: http.Header{"Accept": {"application/json;as=APIGroupDiscoveryList"}}, Client: exchange.Nobody{}}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req.SplitTarget()
	return req
}

// ask returns the source, the status and the version of a response, or "" for a forwarded request.
func (w *world) ask(t *testing.T, req *exchange.Request) string {
	t.Helper()
	resp := w.Answer(t.Context(), req)
	if resp == nil {
		return ""
	}
	body := resp.Bytes
	if resp.Reader != nil {
		var err error
		if body, err = io.ReadAll(resp.Reader); err != nil || int64(len(body)) != resp.Length {
			t.Errorf("%d bytes of %d: %v", len(body), resp.Length, err)
		}
	}
	resp.CloseBody()
	version, _, _ := strings.Cut(string(body), " ")
	return strings.TrimSpace(fmt.Sprint(resp.Source, " ", resp.Status, " ", version))
}

func (w *world) expect(t *testing.T, req *exchange.Request, want string) {
	t.Helper()
	if got := w.ask(t, req); got != want {
		t.Errorf("%s: %q instead of %q", req.Target, got, want)
	}
}

// Upstream confirms each response after the client's request.
func TestRevalidated(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		for _, target := range []string{"/apis?timeout=32s", "/openapi/v2", "/openapi/v3/apis/apps/v1"} {
			w.set(func() { w.version = 1 })
			w.expect(t, get(target), "upstream 200 1")
			w.expect(t, get(target), "cache 200 1")
			w.set(func() { w.version = 2; w.size = exchange.SmallBody })
			w.expect(t, get(target), "upstream 200 2")
			w.expect(t, get(target), "cache 200 2")
			w.expect(t, get(target, "If-None-Match", `"2"`, "If-Modified-Since", "then"), "cache 304")
			w.expect(t, get(target, "If-None-Match", `"1"`), "cache 200 2")
			w.set(func() { w.version = 3 })
			w.expect(t, get(target, "If-None-Match", `"3"`), "upstream 304")
			w.expect(t, get(target, "Accept-Encoding", "gzip"), "upstream 200 3") // another form
		}
		w.expect(t, get("/openapi/v3"), "upstream 200 3")
		w.expect(t, get("/openapi/v3"), "upstream 200 3")
		if w.results["unchanged"] != 12 || w.results["new"] != 14 || w.results["failed"] != 0 {
			t.Errorf("counted %v", w.results)
		}
		for _, req := range w.requests {
			if req.Identity != nil || req.Query != "" {
				t.Errorf("asked for %s", req.Target)
			}
		}
	})
}

// A copy of a document with a hash is not used when upstream redirects to another document.
func TestHash(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.set(func() { w.version = 17 })
		const target = "/openapi/v3/api/v1?hash="
		w.expect(t, get(target+"17"), "upstream 200 17")
		w.expect(t, get(target+"17&timeout=32s"), "cache 200 17")
		w.set(func() { w.version = 18 })
		w.expect(t, get(target+"17"), "upstream 301 18")
		w.expect(t, get(target+"17"), "upstream 301 18")
		w.expect(t, get(target+"18"), "upstream 200 18")
		w.expect(t, get(target+"18"), "cache 200 18")
		if len(w.kept.mu.at) != 1 {
			t.Errorf("%d copies", len(w.kept.mu.at))
		}
	})
}

// A response has upstream's headers, except the headers of upstream's own request.
func TestHeaders(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.ask(t, get("/apis"))
		resp := w.Answer(t.Context(), get("/apis", "Audit-Id", "mine"))
		if h := resp.Header; h.Get("Audit-Id") != "mine" || h.Get("Etag") != `"1"` || h.Get("Content-Type") == "" || h.Get("Vary") != "Accept" {
			t.Errorf("headers %v", h)
		}
		resp = w.Answer(t.Context(), get("/apis", "If-None-Match", `"1"`))
		if h := resp.Header; h.Get("Audit-Id") == "upstream" || h.Get("Etag") != `"1"` || h.Get("Content-Type") != "" || h.Get("Last-Modified") != "" {
			t.Errorf("headers of a 304: %v", h)
		}
	})
}

// Documents in different forms do not replace each other, although their headers are the same.
func TestForms(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		pretty := get("/apis", "Accept", "application/json;as=APIGroupDiscoveryList;pretty=1")
		for _, from := range []string{"upstream", "cache", "cache"} {
			w.expect(t, get("/apis"), from+" 200 1")
			w.expect(t, pretty, from+" 200 1")
		}
		plain, indented := w.Answer(t.Context(), get("/apis")), w.Answer(t.Context(), pretty)
		if len(plain.Bytes)+1 != len(indented.Bytes) || len(w.kept.mu.at) != 2 {
			t.Errorf("%d and %d bytes, %d copies", len(plain.Bytes), len(indented.Bytes), len(w.kept.mu.at))
		}
		w.set(func() { w.version = 2 })
		w.expect(t, get("/apis"), "upstream 200 2")
		w.expect(t, pretty, "upstream 200 2")
		if len(w.kept.mu.at) != 2 {
			t.Errorf("%d copies", len(w.kept.mu.at))
		}
	})
}

// Unusual requests are forwarded without any other request upstream.
func TestForwarded(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		for _, req := range []*exchange.Request{
			get("/api/v1"), get("/apis/apps"), get("/apis/apps/v1"), get("/version"), get("/apis/"), get("/apis", "Accept", "application/json"),
			get("/openapi/v3/"), get("/openapi/v3/../v2"), get("/openapi/v3/a%2Fb"), get("/openapi/v3//a"), get("/openapi/v3/" + strings.Repeat("x", pathMost)),
			get("/apis?hash=AB"), get("/apis?x=1"), get("/apis?timeout=0"), get("/apis?timeout=1"), get("/apis?timeout=5s&timeout=6s"), get("/apis?x=%zz"),
			get("/openapi/v3/a?hash="), get("/openapi/v3/a?hash=x"), get("/openapi/v3/a?hash=" + strings.Repeat("A", hashMost+1)), get("/openapi/v3/a?hash=A&hash=B"),
			get("/apis", "Accept", "as=APIGroupDiscoveryList"+strings.Repeat("x", acceptMost)), get("/apis", "Accept-Encoding", "gzip;q=0"),
			get("/apis", "Accept-Encoding", "*"), get("/apis", "Accept-Encoding", "GZIP"), get("/apis", "Range", "bytes=0-1"), get("/apis", "X-Unknown", "x"),
			get("/apis", "If-None-Match", "*"), get("/apis", "If-None-Match", `W/"1"`), get("/apis", "If-None-Match", `"1", "2"`), get("/apis", "If-None-Match", "1"),
			get("/apis", "If-Modified-Since", "then"), get("/apis", "Authorization", "Bearer x"), get("/apis", "Impersonate-User", "x"),
			{Method: http.MethodHead, Path: "/openapi/v2", Header: http.Header{}},
			{Method: http.MethodGet, Path: "/openapi/v2", Header: http.Header{}, Body: &exchange.Body{}},
		} {
			w.expect(t, req, "")
		}
		if w.sent() != 0 {
			t.Errorf("%d requests", w.sent())
		}
	})
}

// If upstream refuses the proxy, each client's request is forwarded. All waiting clients receive a
// redirect, 404 or 406.
func TestRefused(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.expect(t, get("/openapi/v2"), "upstream 200 1")
		for _, status := range []int{401, 403, 429, 500, 503} {
			w.set(func() { w.status = status })
			w.expect(t, get("/openapi/v2"), "")
		}
		w.set(func() { w.status = 0 })
		w.expect(t, get("/openapi/v2"), "cache 200 1")
		for _, status := range []int{301, 404, 406} {
			w.set(func() { w.status = status })
			w.expect(t, get("/openapi/v2"), fmt.Sprintf("upstream %d 1", status))
			w.expect(t, get("/openapi/v2"), fmt.Sprintf("upstream %d 1", status))
		}
	})
}

// If upstream does not answer in time, each client's request is forwarded.
func TestUnansweredRevalidation(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.set(func() { w.takes = time.Hour })
		began := time.Now()
		w.expect(t, get("/openapi/v2"), "")
		w.expect(t, get("/openapi/v2?timeout=2s"), "")
		if took := time.Since(began); took > 2*patience {
			t.Errorf("lost after %v", took)
		}
	})
}

// A document that is too long for a copy is forwarded.
func TestTooLong(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.set(func() { w.size = bodyMost })
		w.expect(t, get("/openapi/v2"), "")
		w.set(func() { w.size = bodyMost - 100 })
		w.expect(t, get("/openapi/v2"), "upstream 200 1")
		w.expect(t, get("/openapi/v2"), "cache 200 1")
		w.set(func() { w.version = 2; w.size = bodyMost })
		w.expect(t, get("/openapi/v2"), "")
	})
}

// Clients that arrive together share a revalidation. No client receives a document from before its
// arrival.
func TestClientsShareARevalidation(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.set(func() { w.takes = 10 * time.Millisecond })
		var clients sync.WaitGroup
		for i := range 1000 {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				before := 0
				w.set(func() {
					if i%100 == 0 {
						w.version++
					}
					before = w.version
				})
				got := w.ask(t, get("/apis"))
				if version, _ := strconv.Atoi(got[strings.LastIndexByte(got, ' ')+1:]); version < before {
					t.Errorf("%q is older than %d", got, before)
				}
			})
		}
		clients.Wait()
		if w.sent() > 12 || w.results["failed"] != 0 || w.shared.Load() == 0 {
			t.Errorf("%d requests within 100 ms of 10 ms each, %v, %d shared", w.sent(), w.results, w.shared.Load())
		}
	})
}

// leaver is a client that leaves.
type leaver struct{ after time.Duration }

func (l leaver) CancelWhenGone(gone context.CancelFunc) (stop func()) {
	timer := time.AfterFunc(l.after, gone)
	return func() { timer.Stop() }
}

func (leaver) Interrupt() {}

// A revalidation continues if the client that began it leaves.
func TestLeavingLeader(t *testing.T) {
	inWorld(t, Most, func(t *testing.T, w *world) {
		w.set(func() { w.takes = time.Second })
		var clients sync.WaitGroup
		for i := range 10 {
			clients.Go(func() {
				req, want := get("/apis"), "upstream 200 1"
				if i%3 == 0 {
					req.Client = leaver{time.Second / 2}
				}
				time.Sleep(time.Duration(i) * time.Millisecond)
				if got := w.ask(t, req); i%3 != 0 && got != want && got != "cache 200 1" {
					t.Errorf("client %d: %q", i, got)
				}
			})
		}
		clients.Wait()
		if w.sent() > 2 || w.results["failed"] != 0 {
			t.Errorf("%d requests, %v", w.sent(), w.results)
		}
	})
}

// Copies stay within their bound, and made-up headers add no copies.
func TestBounds(t *testing.T) {
	const most = 100 << 10
	inWorld(t, most, func(t *testing.T, w *world) {
		w.set(func() { w.size = 10 << 10 })
		for i := range 2 * formsMost {
			w.expect(t, get("/openapi/v2", "Accept", fmt.Sprint("text/x", i)), "upstream 200 1")
		}
		if n, forms := len(w.kept.mu.at), len(w.forms.mu.at); n != 1 || forms != formsMost {
			t.Errorf("%d copies of one document, %d forms", n, forms)
		}
		for i := range 100 {
			w.expect(t, get(fmt.Sprint("/openapi/v3/", i)), "upstream 200 1")
			if w.kept.mu.size > most || w.kept.mu.order.Len() != len(w.kept.mu.at) {
				t.Fatalf("%d bytes in %d copies, %d in order", w.kept.mu.size, len(w.kept.mu.at), w.kept.mu.order.Len())
			}
		}
		w.expect(t, get("/openapi/v3/99"), "cache 200 1")
		w.expect(t, get("/openapi/v3/1"), "upstream 200 1")
		w.set(func() { w.version = 2 })
		w.expect(t, get("/openapi/v3/99"), "upstream 200 2")
		if w.kept.mu.size > most {
			t.Errorf("%d bytes", w.kept.mu.size)
		}
	})
}
