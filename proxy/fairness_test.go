package proxy

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// A controller manager updates a Deployment with a burst of writes. The writes wait for slots, and
// no write is refused. Other users are served meanwhile.
func TestBurstOfWritesIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst, forwards = 240, 160
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		var written atomic.Int64
		limits := testLimits()
		limits.Forwards = forwards
		s, address := serveFeeds(t, forwardsAll{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				<-gate
				written.Add(1)
				w.WriteHeader(http.StatusCreated)
			}
		}, limits, judging(t))
		defer open()
		client := clientTo(t, address, "h2")
		codes := make(chan int, burst)
		var asking sync.WaitGroup
		defer asking.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), testWait)
		defer cancel()
		for range burst {
			asking.Go(func() {
				code, err := client.send(ctx, "controller", http.MethodPost, podsPath, strings.NewReader(strings.Repeat("x", 8<<10)))
				if err != nil {
					t.Error(err)
				}
				codes <- code
			})
		}
		waitFor(t, "all of them are under way", func() bool {
			return len(codes) > 0 || testutil.ToFloat64(s.metrics.Forwards.WithLabelValues("create")) == burst
		})
		if code, err := client.send(ctx, "other", http.MethodGet, podsPath+"/p", nil); code != http.StatusOK || err != nil {
			t.Errorf("another user's get: %d, %v", code, err)
		}
		if n := written.Load(); n != 0 {
			t.Fatalf("%d are written", n)
		}
		open()
		for range burst {
			if code := <-codes; code != http.StatusCreated {
				t.Fatalf("answered with %d", code)
			}
		}
		if n := testutil.ToFloat64(s.metrics.Limited.WithLabelValues("forwards")); n != 0 {
			t.Errorf("%v are refused", n)
		}
		waitFor(t, "nothing is held", func() bool { return s.limits.queues.forwards.Taken() == 0 })
	})
}

// When a client leaves, its request stops waiting for a slot, with or without a body.
func TestWaitingForwardIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.Forwards = 1
		gate := make(chan struct{})
		s, address := serveForwards(t, func(http.ResponseWriter, *http.Request) { <-gate }, limits)
		defer close(gate)
		first := dialTLS(t, address)
		send(t, first, "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
		waitFor(t, "upstream has the first", func() bool { return s.limits.queues.forwards.Taken() == 1 })
		for name, request := range map[string]string{
			"get":         "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"long create": "POST /api/v1/namespaces/a/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 200_000),
			"create":      "POST /api/v1/namespaces/a/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 30000\r\n\r\n" + strings.Repeat("x", 30_000),
		} {
			leaver := dialTLS(t, address)
			send(t, leaver, request)
			waitFor(t, name+" waits", func() bool { return s.limits.queues.forwards.Waiting() == 1 })
			left := time.Now()
			_ = leaver.Close()
			waitFor(t, name+" does not wait any more", func() bool { return s.limits.queues.forwards.Waiting() == 0 })
			if took := time.Since(left); took > time.Second {
				t.Errorf("%s waits for %s after its client has left", name, took)
			}
		}
		client := clientTo(t, address, "h2")
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			if code, err := client.send(ctx, "x", http.MethodPost, podsPath, strings.NewReader(strings.Repeat("x", 200<<10))); err == nil {
				t.Errorf("answered with %d", code)
			}
		})
		waitFor(t, "a stream waits", func() bool { return s.limits.queues.forwards.Waiting() == 1 })
		cancel()
		asking.Wait()
		waitFor(t, "it does not wait any more", func() bool { return s.limits.queues.forwards.Waiting() == 0 })
	})
}

// A request waits for a slot for its client's timeout, and a minute at most. Then it is refused.
func TestPatienceOfForwards(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"": time.Minute, "timeout=7s": 7 * time.Second, "timeout=5m": time.Minute, "timeout=x": time.Minute, "timeout=0s": time.Minute,
		"timeoutSeconds=3": time.Minute, "limit=1&timeout=300ms": 300 * time.Millisecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{limits: &limiter{
				queues:  queues{forwards: fair.NewPool(1, false), givenUp: fair.NewPool(1, false)},
				metrics: metrics.New(prometheus.NewRegistry()),
			}}
			ask := func() *exchange.Response {
				req := &exchange.Request{Query: query, Route: exchange.Route{Verb: "create"}, Header: http.Header{}, Client: exchange.Nobody{}}
				_, refusal := s.limits.admitForward(t.Context(), req)
				return refusal
			}
			if refusal := ask(); refusal != nil {
				t.Fatal(refusal.Status)
			}
			began := time.Now()
			refusal := ask()
			if waited := time.Since(began); refusal == nil || refusal.Status != http.StatusTooManyRequests || refusal.Header.Get("Retry-After") == "" ||
				waited != want || refusal.Last {
				t.Errorf("%q: %+v after %v, want a refusal after %v", query, refusal, waited, want)
			}
		})
	}
}

// If two users hold all that they can get of a resource, a third finds room.
func TestTwoUsersLeaveRoom(t *testing.T) {
	o := testOptions()
	o.Access, o.Limits.Forwards = judging(t), 40
	s, _ := serveTo(t, forwardsAll{}, http.NotFound, o)
	for name, q := range map[string]*fair.Pool{
		"forwards": s.limits.queues.forwards, "stale reads": s.limits.queues.fallbackReads, "stale watches": s.limits.queues.fallbackWatches, "late watches": s.limits.queues.late,
		"memory": s.limits.queues.memory, "lasting": s.limits.queues.lasting, "unauthenticated": s.limits.queues.strangers,
		"heads": s.limits.queues.begun, "unread": s.limits.queues.unread,
	} {
		size := max(1, q.Capacity/100)
		for more := true; more; {
			more = false
			for _, user := range []string{"a", "b"} {
				more = q.Try(user, size) || more
			}
		}
		if free := q.Capacity - q.Taken(); free < q.Capacity/3 || !q.Try("c", size) || !q.Try("c", size) {
			t.Errorf("%s: %d of %d are left for a third user", name, free, q.Capacity)
		}
	}
}

// If strangers fill the memory for requests of unknown senders, a client that is known is answered on
// its connection. New connections are refused.
func TestStrangersDoNotHinderKnownClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Access = judging(t)
		s, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, o)
		for _, protocol := range []string{"h2", "http/1.1"} {
			known, unknown := clientTo(t, l, protocol), clientTo(t, l, protocol)
			ask := func(c *httpClient, method string, want int) {
				t.Helper()
				if code, err := c.send(t.Context(), "reader", method, podsPath, strings.NewReader("{}")); code != want {
					t.Errorf("%s: %d %v, want %d", protocol, code, err, want)
				}
			}
			ask(known, http.MethodPost, http.StatusOK)
			all := s.limits.queues.strangers.Capacity - s.limits.queues.strangers.Taken()
			if !s.limits.queues.strangers.Try("stranger", all) {
				t.Fatal("there is no room for strangers")
			}
			ask(known, http.MethodPost, http.StatusOK)
			ask(unknown, http.MethodPost, http.StatusTooManyRequests)
			s.limits.queues.strangers.Give("stranger", all)
			ask(unknown, http.MethodPost, http.StatusOK)
			if taken := s.limits.queues.strangers.Taken(); taken != 0 {
				t.Errorf("%d bytes are still held", taken)
			}
		}
	})
}

// Strangers' incomplete requests and unread bytes take nothing from requests of unknown senders, and
// nothing from users.
func TestConnectionsOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Access = judging(t)
		s, l := serveTo(t, forwardsAll{}, func(http.ResponseWriter, *http.Request) {}, o)
		unread := dialSlow(t, l, "h2")
		go func() { _, _ = greet(unread) }()
		time.Sleep(5 * time.Second)
		begun := s.limits.queues.begun
		if held := begun.Taken(); held < 2*exchange.PieceSize || usersHold(s) != 0 {
			t.Errorf("a stranger who does not read holds %d bytes, users hold %d", held, usersHold(s))
		}
		if !begun.Try("stranger", begun.Capacity-begun.Taken()) {
			t.Fatal("there is no room for strangers")
		}
		if code, err := clientTo(t, l, "h2").send(t.Context(), "reader", http.MethodPost, podsPath, strings.NewReader("{}")); code != http.StatusOK {
			t.Errorf("a new client: %d, %v", code, err)
		}
		s.life.Cut()
	})
}

// A user's requests do not need the memory that watches and unread bytes have, of the same user and of
// others. A known client's long head needs none of strangers.
func TestWatchesLeaveRoomForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Access = judging(t)
		s, l := serveTo(t, forwardsAll{}, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, o)
		client := clientTo(t, l, "http/1.1")
		get := func(header ...string) {
			t.Helper()
			resp := client.open(t, podsPath, append(header, "Authorization", "Bearer reader")...)
			if resp.StatusCode != http.StatusOK {
				t.Errorf("a get: %d", resp.StatusCode)
			}
			_ = resp.Body.Close()
		}
		get()
		for _, pool := range []*fair.Pool{s.limits.queues.lasting, s.limits.queues.unread} {
			for i, users := 0, []string{"reader", "reader1", "reader2", "reader3"}; i < 1000; i++ {
				pool.Try(users[i%len(users)], pool.Capacity/100)
			}
		}
		s.limits.queues.begun.Try("stranger", s.limits.queues.begun.Capacity)
		get()
		get("X-Long", strings.Repeat("x", 3<<10))
		if code, err := client.send(t.Context(), "reader", http.MethodPost, podsPath, strings.NewReader(strings.Repeat("x", 200<<10))); code != http.StatusOK {
			t.Errorf("a write: %d, %v", code, err)
		}
	})
}

// A user who may open no further forwarded watch may still send other requests.
func TestForwardedWatchesLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Access, o.Memory = judging(t), 1<<20
		s, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("watch") {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		}, o)
		client := clientTo(t, l, "h2")
		code := 0
		for i := 0; i < 100 && code != http.StatusTooManyRequests; i++ {
			code = client.open(t, podsPath+"?watch=1", "Authorization", "Bearer reader").StatusCode
		}
		if code != http.StatusTooManyRequests {
			t.Errorf("the last watch: %d", code)
		}
		long := strings.Repeat("x", 30<<10) // takes more than a watch
		if got := client.open(t, podsPath, "Authorization", "Bearer reader", "X-Long", long); got.StatusCode != http.StatusOK {
			t.Errorf("a list: %d", got.StatusCode)
		}
		s.life.Cut()
	})
}

// The readers of a shared response hold its length once, until the last of them has written it. A reader
// whose response is too long to share holds the beginning.
func TestSharedAnswerIsAccounted(t *testing.T) {
	const sharers = 5
	for name, test := range map[string]struct {
		length, kept int64
		shared       int
	}{
		"short": {1000, 0, sharers}, "long": {200 << 10, 200 << 10, sharers}, "too long": {4<<20 + 1, 4 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, gate := make(chan struct{}, sharers+1), make(chan struct{}, sharers+1)
				s, _ := serveForwards(t, func(w http.ResponseWriter, _ *http.Request) {
					asked <- struct{}{}
					<-gate
					_, _ = w.Write(make([]byte, test.length/2))
					_ = http.NewResponseController(w).Flush() // makes a response without a length
					_, _ = w.Write(make([]byte, test.length-test.length/2))
				}, testLimits())
				answers := make(chan *exchange.Response, sharers+2)
				var free sync.Mutex
				var requests []*exchange.Request
				ask := func(ctx context.Context) {
					req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/pods", Path: "/api/v1/pods", Header: http.Header{}, Client: exchange.Nobody{}, Conn: noConn{}}
					go func() {
						resp := s.Handle(ctx, req)
						free.Lock()
						defer free.Unlock()
						requests = append(requests, req)
						answers <- resp
					}()
				}
				waiting := func(want int) {
					t.Helper()
					waitFor(t, "others wait for the same", func() bool { return s.upstream.sharing.Waiting() == want })
				}
				t.Cleanup(func() { close(gate) })
				ask(t.Context())
				<-asked // the other requests share its response
				ctx, leave := context.WithCancel(t.Context())
				ask(ctx)
				for range sharers {
					ask(t.Context())
				}
				waiting(sharers + 1)
				leave()
				waiting(sharers)
				for range sharers + 1 {
					gate <- struct{}{}
				}
				whole := 0
				var open []io.Closer
				for range sharers + 2 {
					resp := <-answers
					if body, ok := resp.Body.(io.Closer); ok {
						open = append(open, body)
					}
					if resp.Status == http.StatusOK {
						whole++
					}
				}
				const heads = (sharers + 2) * 64 << 10 // of the requests themselves, and more
				if got := usersHold(s); whole != sharers+1 || got < test.kept || got > test.kept+heads {
					t.Errorf("%d answers, which take %d instead of %d", whole, got, test.kept)
				}
				for _, one := range open {
					_ = one.Close()
					_ = one.Close()
				}
				for _, one := range requests {
					one.Free()
				}
				waitFor(t, "all is given back", func() bool { return usersHold(s) == 0 && s.limits.queues.forwards.Taken() == 0 })
			})
		})
	}
}

// However many equal readers of a user share a response, none of them is refused.
func TestSharedAnswerForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers, length = 100, 3 << 20
		o := testOptions()
		o.Access, o.Memory = judging(t), 32<<20
		var asked atomic.Int64
		s, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				time.Sleep(time.Second) // the others gather
			}
			_, _ = w.Write(make([]byte, length))
		}, o)
		if !s.limits.queues.forwards.Try("other", s.limits.queues.forwards.Capacity/2+1) { // so that responses are read ahead
			t.Fatal("no slot")
		}
		var all sync.WaitGroup
		for range readers {
			client := clientTo(t, l, "h2")
			all.Go(func() {
				resp := client.open(t, "/api/v1/pods", "Authorization", "Bearer reader")
				time.Sleep(time.Second)
				if n, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || n != length {
					t.Errorf("%d, %d bytes, %v", resp.StatusCode, n, err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if n := usersHold(s); asked.Load() != 2 || n != 0 {
			t.Errorf("upstream was asked %d times, %d bytes are held in the end", asked.Load(), n)
		}
	})
}

// Expensive reads leave a processor to cheap reads and to the network, if there are several.
func TestOneProcessorStaysFree(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for processors, want := range map[int]int{1: 1, 2: 1, 8: 7} {
		runtime.GOMAXPROCS(processors)
		s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, testOptions())
		taken := 0
		for s.limits.queues.reads.Short.Try("a", 1) {
			taken++
		}
		if taken != want {
			t.Errorf("of %d processors, expensive reads may take %d", processors, taken)
		}
	}
}
