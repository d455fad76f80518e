package forward

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
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
			x := &lifetime{Request: &exchange.Request{Client: client, Body: &exchange.Body{}}, attempt: &Attempt{}, cancel: func() {}}
			x.begin(t.Context(), t.Context())
			x.Body.Ended.Store(all)
			go x.finish()
			synctest.Wait()
			if got := client.interrupted.Load(); got != want {
				t.Errorf("a client that had sent all (%t) of its request was interrupted %d times, want %d", all, got, want)
			}
			close(x.uploaded)
		})
	}
}

// reading is a client whose connection tolerates one reader at a time.
type reading struct {
	t           *testing.T
	readers     atomic.Int64
	interrupted chan struct{}
	once        sync.Once
	rest        atomic.Bool // some of the body is still to come
	free        atomic.Bool // the connection waits for the next request
	mu          sync.Mutex
	gone        func() // guarded by mu
}

func (c *reading) touch() {
	if c.free.Load() {
		c.t.Error("the connection is touched after the request")
	}
}

func (c *reading) CancelWhenGone(gone context.CancelFunc) (stop func()) {
	c.touch()
	if c.readers.Add(1) > 1 {
		c.t.Error("two read the connection")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = gone
	return func() {
		c.touch()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.readers.Add(-1)
		c.gone = nil
	}
}

func (c *reading) Interrupt() {
	c.touch()
	c.once.Do(func() { close(c.interrupted) })
}

// Read implements io.Reader. The body ends after a second unless there is more to come.
func (c *reading) Read([]byte) (int, error) {
	c.touch()
	if c.readers.Add(1) > 1 {
		c.t.Error("two read the connection")
	}
	defer c.readers.Add(-1)
	if !c.rest.Load() {
		return 0, io.EOF
	}
	select {
	case <-c.interrupted:
		return 0, io.ErrUnexpectedEOF
	case <-time.After(time.Second):
		c.rest.Store(false)
		return 0, io.EOF
	}
}

// Whatever the order of events, the first end counts, the admission is released once, one party at a time reads
// the client's connection, and after the request nobody does.
func TestLifetime(t *testing.T) {
	seed := cachetest.Seed(t)
	ends := map[ending]int{}
	for run := range uint64(cachetest.Rounds(2000, 50000)) {
		synctest.Test(t, func(t *testing.T) { ends[live(t, rand.New(rand.NewPCG(seed, run)))]++ })
		if t.Failed() {
			t.Fatalf("run %d", run)
		}
	}
	if ends[closed] == 0 || ends[left] == 0 || ends[drained] == 0 {
		t.Errorf("the requests ended by %v", ends)
	}
}

// live is the life of one request. The transport, the client, the server and the reader of the
// response act at random times.
func live(t *testing.T, random *rand.Rand) ending {
	t.Helper()
	c := &reading{t: t, interrupted: make(chan struct{})}
	c.rest.Store(random.IntN(3) > 0)
	over, drain := context.WithCancel(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	var done atomic.Int64
	l := &lifetime{Request: &exchange.Request{Client: c}, attempt: &Attempt{}, cancel: cancel}
	sent := random.IntN(3) == 0 // no body, or it was read before
	if !sent {
		l.Body = &exchange.Body{From: c, Length: -1}
	}
	l.attempt = toldOf(&Attempt{}, func() { done.Add(1) })
	l.begin(over, t.Context())
	var all sync.WaitGroup
	at := func(do func()) {
		wait := time.Duration(random.IntN(40)) * 50 * time.Millisecond
		all.Go(func() {
			time.Sleep(wait)
			do()
		})
	}
	if sent {
		close(l.uploaded)
		l.watchClient()
	} else {
		body := &requestBody{lifetime: l}
		all.Go(func() {
			for {
				if _, err := body.Read(make([]byte, 1)); err != nil {
					if !errors.Is(err, io.EOF) && !slices.Contains([]error{io.ErrUnexpectedEOF, io.ErrClosedPipe}, err) {
						t.Error(err)
					}
					break
				}
			}
			_ = body.Close()
		})
		if random.IntN(2) == 0 {
			at(func() { _ = body.Close() }) // upstream has answered without the rest
		}
		all.Go(func() {
			<-ctx.Done()
			_ = body.Close()
		})
	}
	if random.IntN(2) == 0 {
		at(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.gone != nil {
				c.gone()
			}
		})
	}
	if random.IntN(2) == 0 {
		at(drain)
	}
	upgrades, finishes := random.IntN(4) == 0, time.Duration(random.IntN(40))*50*time.Millisecond
	time.Sleep(finishes)
	if upgrades && l.upgrade() {
		if n := c.readers.Add(1); n > 1 {
			t.Error("the tunnel is not the only reader")
		}
		time.Sleep(time.Second)
		c.readers.Add(-1)
		l.end(closed)
	} else {
		l.finish()
		c.free.Store(true)
		if n := c.readers.Load(); n != 0 {
			t.Errorf("%d read the connection after the request", n)
		}
	}
	after := done.Load()
	drain()
	all.Wait()
	if after != 1 || done.Load() != 1 || ctx.Err() == nil {
		t.Errorf("the admission was released %d times, later %d times; upstream's side: %v", after, done.Load(), ctx.Err())
	}
	return l.ended.Load()
}

// An upstream that upgrades the connection in the middle of the request's body gets no tunnel,
// because two would read from the client.
func TestNoUpgradeDuringTheUpload(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 1))
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}()
	config := &rest.Config{Host: "http://" + l.Addr().String()}
	f, err := New(config, func(adapt Adaptation) (http.RoundTripper, error) { return rest.TransportFor(adapt(config)) })
	if err != nil {
		t.Fatal(err)
	}
	c := &slowClient{interrupted: make(chan struct{})}
	ended := make(chan struct{})
	resp := f.Send(t.Context(), context.Background(), context.Background(), &exchange.Request{
		Method: http.MethodPost, Target: "/api/v1/namespaces/a/pods/b/exec", Client: c,
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "Authorization": {"Bearer a"}},
		Body:   &exchange.Body{From: c, Length: exchange.BodyAhead + 1},
	}, toldOf(&Attempt{Lasts: true}, func() { close(ended) }))
	if _, ok := resp.Body.(exchange.Tunnel); ok || resp.Status != http.StatusBadGateway {
		t.Fatalf("status %d, %T", resp.Status, resp.Body)
	}
	<-ended
	select {
	case <-c.interrupted:
	default:
		t.Error("the rest of the body is still read")
	}
}

// slowClient never sends the rest of its body.
type slowClient struct {
	exchange.Nobody
	interrupted chan struct{}
	once        sync.Once
}

func (c *slowClient) Interrupt() { c.once.Do(func() { close(c.interrupted) }) }

func (c *slowClient) Read([]byte) (int, error) {
	<-c.interrupted
	return 0, io.ErrUnexpectedEOF
}

// closings counts how often a body is closed.
type closings struct {
	io.Reader
	n int
}

func (c *closings) Close() error {
	c.n++
	return nil
}

// However often a response is closed, upstream's body is closed once, also if there is no room for what
// the client does not read.
func TestUpstreamsBodyIsClosedOnce(t *testing.T) {
	body := &closings{Reader: http.NoBody}
	x := &roundTrip{lifetime: lifetime{
		Request: &exchange.Request{Client: exchange.Nobody{}},
		attempt: &Attempt{},
		cancel:  func() {},
	}, upstream: body}
	x.begin(t.Context(), t.Context())
	close(x.uploaded)
	x.watchClient()
	for range 2 {
		_ = x.Close()
	}
	if body.n != 1 {
		t.Errorf("closed %d times", body.n)
	}
}
