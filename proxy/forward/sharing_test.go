package forward

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// A shared answer belongs to a request that was sent after all its readers arrived. Upstream sees
// one request at a time, or a few if the time that they take is known.
func TestSharedAnswersAreConsistent(t *testing.T) {
	t.Run("one at a time", func(t *testing.T) { testShared(t, 0, 1, 1000/10+2) })
	t.Run("a few at a time", func(t *testing.T) { testShared(t, 10*time.Millisecond, fleetMost, 1000*fleetPart/10+2) })
	t.Run("some take long", testSlowFlights)
	t.Run("one hangs", testHungFlight)
}

func testShared(t *testing.T, takes time.Duration, atATime, most int64) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		var fs flights
		var written, sent, flying atomic.Int64
		var readers sync.WaitGroup
		const clients = 2000
		for range clients {
			wait, alone := time.Duration(r.IntN(1000))*time.Millisecond, r.IntN(20) == 0
			patience := time.Hour
			if r.IntN(3) == 0 {
				patience = time.Duration(r.IntN(20)) * time.Millisecond
			}
			readers.Go(func() {
				time.Sleep(wait)
				came := time.Now()
				before := written.Add(1) // a write that was just acknowledged
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				answer, flew := fs.share(ctx, "key", takes, func(bool) (*exchange.Response, bool) {
					if n := flying.Add(1); n > atATime {
						t.Errorf("%d requests at a time", n)
					}
					defer flying.Add(-1)
					sent.Add(1)
					value := written.Load()
					time.Sleep(10 * time.Millisecond)
					return &exchange.Response{Bytes: []byte(strconv.FormatInt(value, 10))}, !alone
				})
				if answer == nil {
					if flew {
						t.Error("flew, and has no answer")
					}
					return // it sends its own request
				}
				if took := time.Since(came); takes > 0 && !flew && took > takes+takes/2 {
					t.Errorf("an answer took %s, upstream %s", took, takes)
				}
				if value, _ := strconv.ParseInt(string(answer.Bytes), 10, 64); value < before {
					t.Errorf("answered with %d, came at %d", value, before)
				}
			})
		}
		readers.Wait()
		if n := sent.Load(); n > most {
			t.Errorf("%d requests within a second of 10 ms each", n)
		}
		if len(fs.mu.fleets) != 0 {
			t.Errorf("%d keys left", len(fs.mu.fleets))
		}
	})
}

// If answers take much longer than expected, the number of flights stays bounded.
func testSlowFlights(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		var fs flights
		var flying atomic.Int64
		var readers sync.WaitGroup
		for range 600 {
			wait, takes := time.Duration(r.IntN(20_000))*time.Millisecond, 10*time.Millisecond
			if r.IntN(4) == 0 {
				takes = 5 * time.Second
			}
			readers.Go(func() {
				time.Sleep(wait)
				fs.share(t.Context(), "key", 10*time.Millisecond, func(bool) (*exchange.Response, bool) {
					if n := flying.Add(1); n > fleetMost {
						t.Errorf("%d requests at a time", n)
					}
					defer flying.Add(-1)
					time.Sleep(takes)
					return &exchange.Response{}, true
				})
			})
		}
		readers.Wait()
		if len(fs.mu.fleets) > 0 {
			t.Errorf("%d keys left", len(fs.mu.fleets))
		}
	})
}

// Once the next flight may begin, no reader has to wait for a hanging flight, whatever time is
// expected.
func testHungFlight(t *testing.T) {
	for _, known := range [][]int{{10, 10, 10}, {10, 20, 10}, {0, 10, 10}, {10, 0, 20}, {0, 0, 10}} {
		synctest.Test(t, func(t *testing.T) {
			var fs flights
			var readers sync.WaitGroup
			for i, takes := range known {
				readers.Go(func() {
					time.Sleep(time.Duration(i) * 100 * time.Microsecond)
					began := time.Now()
					fs.share(t.Context(), "key", time.Duration(takes)*time.Millisecond, func(bool) (*exchange.Response, bool) {
						if i == 0 {
							time.Sleep(time.Minute)
						}
						return &exchange.Response{}, true
					})
					if took := time.Since(began); i > 0 && took > 5*time.Millisecond {
						t.Errorf("known to take %d ms: reader %d waited for %s", known, i, took)
					}
				})
			}
			readers.Wait()
		})
	}
}

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
	if _, ok := shareKey(base(), exchange.ParseRoute("GET", "/api/v1/namespaces/a/pods/p/log")); ok {
		t.Error("a subresource is shared")
	}
}

// A flight does not wait for clients that have left. If all have left, no request is sent.
func TestLeaversAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fs flights
		var flown atomic.Int64
		var all sync.WaitGroup
		all.Go(func() {
			fs.share(t.Context(), "key", 0, func(bool) (*exchange.Response, bool) {
				flown.Add(1)
				time.Sleep(time.Hour)
				return nil, false
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		for range 20 {
			left.Go(func() {
				if answer, flew := fs.share(ctx, "key", 0, func(bool) (*exchange.Response, bool) { flown.Add(1); return nil, false }); answer != nil || flew {
					t.Error("a reader that left has flown")
				}
			})
		}
		synctest.Wait()
		cancel()
		left.Wait() // within the hour
		all.Wait()
		if n := flown.Load(); n != 1 || len(fs.mu.fleets) != 0 {
			t.Errorf("%d flights, %d keys left", n, len(fs.mu.fleets))
		}
	})
}

// An answer that lands while a client leaves gives back that client's share of the memory.
func TestSharedAnswerOfALeaverIsGivenBack(t *testing.T) {
	s := &Sharing{}
	req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/pods", Path: "/api/v1/pods", Header: http.Header{}}
	rt := exchange.ParseRoute(req.Method, req.Path)
	key, ok := shareKey(req, rt)
	if !ok {
		t.Fatal("it cannot be shared")
	}
	left, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // the answer or the leaving may come first
		freed := false
		answer := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
		answer.Bytes = []byte("x")
		answer.Shares = (&fair.Workspace{}).Shared(func() { freed = true })
		answer.LetGo(-1)
		f := newFlight()
		f.answer = answer
		close(f.landed)
		s.flights.mu.fleets = map[string]*fleet{key: {up: 1, next: f}}
		s.share(left, req, rt, &Trip{}, func() {})
		if !freed {
			t.Fatal("a share is lost")
		}
	}
}
