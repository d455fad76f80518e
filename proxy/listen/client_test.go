package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// connected returns a client and the server's side of its connection.
func connected(t *testing.T) (theirs net.Conn, server *client) {
	t.Helper()
	c, s := net.Pipe()
	t.Cleanup(func() { c.Close(); s.Close() })
	return c, &client{Conn: conn.New(s)}
}

// The proxy notices the departure of a client, also of one that has sent bytes before.
func TestCancelWhenGoneNoticesTheClientLeaving(t *testing.T) {
	for _, sent := range []string{"", "\r\n"} {
		theirs, server := connected(t)
		ctx, cancel := context.WithCancel(t.Context())
		stop := server.CancelWhenGone(cancel)
		if sent != "" {
			if _, err := io.WriteString(theirs, sent); err != nil {
				t.Fatal(err)
			}
		}
		theirs.Close()
		<-ctx.Done()
		stop()
		if got, err := io.ReadAll(server); string(got) != sent || err != nil {
			t.Errorf("a later read gives %q, %v, want %q", got, err, sent)
		}
	}
}

// Bytes that the client sends while a handler runs belong to its next request.
func TestCancelWhenGoneLosesNoByte(t *testing.T) {
	theirs, server := connected(t)
	stop := server.CancelWhenGone(func() { t.Error("the client is there") })
	// The write returns once these bytes were read ahead.
	if _, err := io.WriteString(theirs, "GET / HTTP/1.1"); err != nil {
		t.Fatal(err)
	}
	stop()
	go func() {
		_, _ = io.WriteString(theirs, " and more")
		theirs.Close()
	}()
	if got, err := io.ReadAll(server); err != nil || string(got) != "GET / HTTP/1.1 and more" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestCancelWhenGoneStops(t *testing.T) {
	theirs, server := connected(t)
	for range 3 { // requests in a row
		stop := server.CancelWhenGone(func() { t.Error("the client is there") })
		stop()
	}
	go func() { _, _ = io.WriteString(theirs, "x") }()
	if b := make([]byte, 1); !func() bool { n, err := server.Read(b); return n == 1 && err == nil }() {
		t.Error("the connection cannot be read")
	}
}

// If the connection breaks before a hijack begins, fasthttp drops the hijack, and what it would have
// released is released.
func TestCloseAbandonsAHijack(t *testing.T) {
	_, server := connected(t)
	n := 0
	_ = (&turn{client: server, hijacked: true, abandon: func() { n++ }}).Close()
	if n != 1 {
		t.Errorf("abandoned %d times, want once", n)
	}
}

// A few empty lines before a head are ignored. After more, the connection ends: each would cost time, and
// no limit of a head's size counts them.
func TestEmptyLinesBeforeAHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const line = "\r\n"
		limits := exchange.Limits{Read: time.Minute, Idle: time.Minute, HeaderBytes: 1 << 10}
		for lines, want := range map[int]bool{0: true, 1: true, emptyMax / len(line): true, emptyMax/len(line) + 1: false} {
			theirs, accepted := conntest.Pipe(readSize)
			c, ended := &client{Conn: conn.New(accepted)}, make(chan bool, 1)
			go func() {
				err := c.await(true, limits)
				_ = c.Close()
				ended <- err == nil
			}()
			send := func(text string) {
				t.Helper()
				if _, err := io.WriteString(theirs, text); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			for range lines {
				send(line)
			}
			if want {
				for _, b := range []byte("GET / HTTP/1.1\r\n\r\n") {
					send(string(b))
				}
			}
			select {
			case got := <-ended:
				if got != want || got && c.head != len(c.ahead) {
					t.Errorf("%d empty lines: %t, a head of %d bytes", lines, got, c.head)
				}
			default:
				t.Errorf("%d empty lines: nothing happens", lines)
			}
			_ = theirs.Close()
		}
	})
}

// Fasthttp parses a head again from the start for each byte that follows without an end. So it gets no
// head that it regards as incomplete.
func TestHeadsAreWhole(t *testing.T) {
	for text, whole := range map[string]bool{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n": true,
		"GET / HTTP/1.0\r\n\r\n":            true,
		"GET / HTTP/1.1\r\nHost: a\r\n":     false,
		"GET / HTTP/1.1\nHost: a\n\n":       false,
		"GET / HTTP/1.1\r\nHost: a\r\n\n":   false,
		"GET / HTTP/1.1\r\nHost: a\n\r\n":   false,
		"GET / HTTP/1.1\r\nHost: a\r\r\n":   false,
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, accepted := conntest.Pipe(readSize)
			defer theirs.Close()
			limits := exchange.Limits{Read: time.Minute, Idle: time.Minute, HeaderBytes: 1 << 10}
			c, served := &client{Conn: conn.New(accepted)}, make(chan error, 1)
			go func() { served <- c.await(true, limits) }()
			for _, b := range []byte(text) {
				if _, err := theirs.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			select {
			case err := <-served:
				if !whole || err != nil || c.head != len(text) {
					t.Errorf("%q is a head of %d bytes, %v", text, c.head, err)
				}
			default:
				if whole {
					t.Errorf("%q is no head", text)
				}
				_ = theirs.Close()
				<-served
			}
		})
	}
}

// networks accepts connections of clients with addresses of their own.
type networks struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// Accept implements net.Listener.
func (l *networks) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *networks) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (*networks) Addr() net.Addr { return &net.TCPAddr{} }

// headsPart is the number of bytes of incomplete requests that unknown clients may hold, and also the
// number that known clients may hold.
const headsPart = 16 << 20

// Begun requests are bounded, also those of known clients: incomplete heads, and the memory that fasthttp
// holds while it waits for the beginning of a body. A client fills half of its part. Other clients, and
// the clients of the other part, find room. All bytes are given back.
func TestBegunRequestsAreBounded(t *testing.T) {
	const first = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	field := "X: " + strings.Repeat("x", 60<<10)
	for name, test := range map[string]struct {
		known bool
		begun string
		size  int // what counts, in bytes
	}{
		"heads":           {false, "GET / HTTP/1.1\r\n" + field, 60 << 10},
		"heads, known":    {true, "GET / HTTP/1.1\r\n" + field, 60 << 10},
		"bodies":          {false, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n" + field + "\r\n\r\nx", 70 << 10},
		"bodies, known":   {true, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n" + field + "\r\n\r\nx", 70 << 10},
		"bodies of many":  {false, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n" + strings.Repeat("x:\r\n", 10000) + "\r\n", 1 << 20},
		"expected bodies": {false, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n", 10 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				user := "greedy"
				s := newServer(func(req *exchange.Request) *exchange.Response {
					if test.known {
						req.Conn.HoldAs(user, func() (func(), bool) { return func() {}, true })
					}
					return exchange.NewResponse(200, exchange.FromProxy)
				}, nil, 0)
				l := &networks{accepted: make(chan net.Conn), closed: make(chan struct{})}
				_, end := s.runs(t, l)
				defer end()
				begin := func(network byte) (c *conntest.Socket, refused bool) {
					t.Helper()
					c, server := conntest.Pipe(readSize + len(test.begun))
					server.Remote = &net.TCPAddr{IP: net.IPv4(192, 0, 2, network)}
					l.accepted <- server
					sends := func(text string) {
						if _, err := io.WriteString(c, text); err != nil {
							t.Fatal(err)
						}
					}
					if test.known {
						sends(first)
						if _, err := c.Read(make([]byte, 1<<10)); err != nil {
							t.Fatal(err)
						}
					}
					sends(test.begun)
					synctest.Wait()
					_, err := c.ReadNow(make([]byte, 1<<10))
					if err == nil { // an answer
						_, err = c.ReadNow(make([]byte, 1<<10))
					}
					return c, errors.Is(err, io.EOF)
				}
				for range 2 { // all bytes are given back
					var clients []*conntest.Socket
					refusals := 0
					for range headsPart / test.size {
						c, refused := begin(1)
						if clients = append(clients, c); refused {
							refusals++
						}
					}
					if held := (len(clients) - refusals) * test.size; held > headsPart/2+2*test.size || held < headsPart/4 {
						t.Errorf("%d bytes are held, want about %d", held, headsPart/2)
					}
					user = "modest"
					c, refused := begin(2)
					if refused {
						t.Error("another client finds no room")
					}
					user = "greedy"
					for _, c := range append(clients, c) {
						c.Close()
					}
					synctest.Wait()
				}
				if n := testutil.ToFloat64(s.Metrics.Refused.WithLabelValues("heads")); n == 0 {
					t.Error("the refusals are not counted")
				}
			})
		})
	}
}

// A connection ends if a request does not come, or not completely, in time, and at once if its head is
// too long.
func TestWaitsAreLimited(t *testing.T) {
	limits := newServer(nil, nil, 0).Options().Limits
	const first, refused = "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 4"
	config := tlsConfig(t)
	for name, test := range map[string]struct {
		sent, slowly string
		ends         time.Duration
		answer       string // its beginning
		config       *tls.Config
	}{
		"silent, over TLS":   {ends: 10 * time.Second, config: config},
		"silent":             {ends: limits.Read},
		"silent, after one":  {sent: first, ends: limits.Idle, answer: "HTTP/1.1 200"},
		"slow":               {slowly: "GET / HTTP/1.1\r\nHost: a", ends: limits.Read, answer: refused},
		"slow, after one":    {sent: first, slowly: "GET / HTTP/1.1", ends: limits.Read, answer: "HTTP/1.1 200"},
		"without its body":   {sent: strings.Replace(first, "Host", "Content-Length: 5\r\nHost", 1), ends: limits.Read, answer: refused},
		"too long":           {sent: first[:20] + strings.Repeat("x", limits.HeaderBytes), answer: refused + "31"},
		"too long, for ever": {sent: first[:20] + strings.Repeat("x", 2*limits.HeaderBytes), answer: refused + "31"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(answers(false), test.config, 0)
				c := s.connect(t, 1<<20)
				if _, err := io.WriteString(c, test.sent); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				began := time.Now()
				var writing sync.WaitGroup
				writing.Go(func() {
					for _, b := range []byte(test.slowly) {
						_, _ = c.Write([]byte{b})
						time.Sleep(limits.Read / time.Duration(len(test.slowly)-1))
					}
				})
				answer, _ := io.ReadAll(c)
				if took := time.Since(began); took != test.ends || !strings.HasPrefix(string(answer), test.answer) {
					t.Errorf("it ended after %v with %.100q", took, answer)
				}
				writing.Wait()
			})
		})
	}
}

// The departure of a client is noticed, however long its request takes: after a body, after an
// interruption, which concerns one request, and in a drain, which limits only waits for requests.
func TestDeparturesAreNoticed(t *testing.T) {
	const get, put = "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "PUT /%s HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
	for name, test := range map[string]struct {
		before, request string
		drains          bool
		after           time.Duration
	}{
		"a request":             {request: get, after: time.Hour},
		"with a body":           {request: fmt.Sprintf(put, ""), after: time.Hour},
		"after an interruption": {before: fmt.Sprintf(put, "interrupted"), request: get, after: time.Hour},
		"in a drain":            {before: fmt.Sprintf(put, "interrupted"), request: get, drains: true, after: 2 * roundTripMax},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				left := make(chan time.Time, 1)
				l := conntest.Listen(readSize)
				begin, end := newServer(func(req *exchange.Request) *exchange.Response {
					if req.Body != nil {
						_, _ = io.ReadAll(req.Body)
					}
					if req.Path == "/interrupted" {
						req.Client.Interrupt()
						return exchange.NewResponse(200, exchange.FromProxy)
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer req.Client.CancelWhenGone(cancel)()
					<-ctx.Done()
					left <- time.Now()
					return exchange.ClientGone()
				}, nil, time.Minute).runs(t, l)
				defer end()
				c, err := l.Dial()
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{test.before, test.request} {
					if _, err := io.WriteString(c, text); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if test.drains {
					begin()
				}
				time.Sleep(test.after)
				leaves := time.Now()
				_ = c.Close()
				if at := <-left; at != leaves {
					t.Errorf("it is noticed after %v", at.Sub(leaves))
				}
			})
		})
	}
}

// A chunked body that ends between two chunks is broken, although fasthttp takes its end for the last
// chunk.
func TestCutBodies(t *testing.T) {
	const head = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	for body, whole := range map[string]bool{"1\r\nx\r\n0\r\n\r\n": true, "1\r\nx\r\n": false, "1\r\nx": false, "2\r\nx": false, "": false} {
		synctest.Test(t, func(t *testing.T) {
			read := make(chan error, 1)
			c := newServer(func(req *exchange.Request) *exchange.Response {
				_, err := io.ReadAll(req.Body)
				read <- err
				return exchange.NewResponse(200, exchange.FromProxy)
			}, nil, 0).connect(t, readSize)
			for _, text := range []string{head, body} {
				if _, err := io.WriteString(c, text); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			_ = c.Close()
			if err := <-read; (err == nil) != whole {
				t.Errorf("%q is read: %v", body, err)
			}
		})
	}
}

// After an interruption, no read of the body waits for the client.
func TestInterruptedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan error, 1)
		c := newServer(func(req *exchange.Request) *exchange.Response {
			req.Client.Interrupt()
			_, err := io.ReadAll(req.Body)
			read <- err
			return exchange.NewResponse(200, exchange.FromProxy)
		}, nil, 0).connect(t, 1<<20)
		began := time.Now()
		if _, err := fmt.Fprintf(c, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", 1<<20, make([]byte, bodyBegin)); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err == nil || !time.Now().Equal(began) {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// An answer may precede the end of a body. The client may go on to send it for a time, because a reset
// could overtake the answer.
func TestEarlyAnswersAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(answers(false), nil, 0)
		c := s.connect(t, readSize)
		if _, err := fmt.Fprintf(c, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 1<<20); err != nil {
			t.Fatal(err)
		}
		for range 3 * bodyBegin / readSize {
			if _, err := c.Write(make([]byte, readSize)); err != nil {
				t.Fatalf("the client cannot send its body: %v", err)
			}
			synctest.Wait()
		}
		if answer, err := io.ReadAll(c); err != nil || !strings.Contains(string(answer), "hello") {
			t.Errorf("it reads %q, %v", answer, err)
		}
		time.Sleep(10 * time.Second)
		if s.Connections() != 0 {
			t.Error("the connection does not end")
		}
	})
}

// A client that does not read the beginning of an answer is disconnected: that of a watch, and also if
// fasthttp has found no request.
func TestUnreadHeadIsCut(t *testing.T) {
	for text, most := range map[string]time.Duration{"malformed": time.Minute, "GET /watch HTTP/1.1\r\nHost: a": stall} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := cachetest.ConfigMaps(t, 1)
			s := newServer(func(*exchange.Request) *exchange.Response {
				resp := exchange.NewResponse(200, exchange.FromCache)
				resp.Stream = watch.New(watchOf(t, c))
				return resp
			}, nil, 0)
			client := s.connect(t, 10)
			go func() { _, _ = io.WriteString(client, text+"\r\n\r\n") }()
			time.Sleep(most - 1)
			if s.Connections() != 1 {
				t.Errorf("%q: it has ended", text)
			}
			time.Sleep(2 * time.Nanosecond)
			if s.Connections() != 0 {
				t.Errorf("%q: it is still there", text)
			}
		})
	}
}

// A request whose handler runs counts no longer as begun. Neither does a body that was read.
func TestHandledRequestsAreNotBegun(t *testing.T) {
	for body, clients := range map[string]int{"xx": 900, strings.Repeat("x", 60<<10): 200} { // more than may wait for a body
		synctest.Test(t, func(t *testing.T) {
			release, handled := make(chan struct{}), atomic.Int64{}
			s := newServer(func(req *exchange.Request) *exchange.Response {
				stop := req.Client.CancelWhenGone(func() { t.Error("a client counts as gone") })
				time.Sleep(aheadGrace) // until all of the body was sent
				stop()
				if got, err := io.ReadAll(req.Body); string(got) != body {
					t.Errorf("the body has %d bytes, %v", len(got), err)
				}
				handled.Add(1)
				<-release
				return exchange.NewResponse(200, exchange.FromProxy)
			}, nil, 0)
			l := conntest.Listen(len(body))
			_, end := s.runs(t, l)
			for range clients {
				c, err := l.Dial()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := fmt.Fprintf(c, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if _, err := io.WriteString(c, body); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
			}
			if n := handled.Load(); n != int64(clients) {
				t.Errorf("%d of %d requests are handled", n, clients)
			}
			close(release)
			s.Cut()
			end()
		})
	}
}

// Bytes that a client sends ahead while its request is answered count like a head. A client without
// room for them, or that sends more than AheadMax, counts as gone.
func TestBytesAheadAreBounded(t *testing.T) {
	for sent, room := range map[int]int{60 << 10: headsPart / 2 / (60 << 10), exchange.AheadMax: 0} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var gone atomic.Int64
			s := newServer(func(req *exchange.Request) *exchange.Response {
				ctx, left := context.WithCancel(t.Context())
				stop := req.Client.CancelWhenGone(left)
				select {
				case <-ctx.Done():
					gone.Add(1)
				case <-release:
				}
				stop()
				return exchange.NewResponse(200, exchange.FromProxy)
			}, nil, 0)
			l := conntest.Listen(sent)
			_, end := s.runs(t, l)
			const clients = headsPart / (60 << 10)
			for range clients {
				c, err := l.Dial()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				for _, text := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", strings.Repeat("x", sent)} {
					if _, err := io.WriteString(c, text); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
			}
			time.Sleep(aheadGrace)
			synctest.Wait()
			if there := clients - int(gone.Load()); there > room*11/10 || there < room*3/4 {
				t.Errorf("%d clients that have sent %d bytes are there, want about %d", there, sent, room)
			}
			close(release)
			s.Cut()
			end()
		})
	}
}

// A client that has read a response may send its next request, however long, before the server sees that
// the response has ended.
func TestLongRequestFollowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 4 * exchange.AheadMax
		written := make(chan struct{})
		s := newServer(func(req *exchange.Request) *exchange.Response {
			if req.Body == nil {
				defer req.Client.CancelWhenGone(func() { t.Error("the client counts as gone") })()
				<-written // as if the response were written
				return exchange.NewResponse(200, exchange.FromProxy)
			}
			if n, err := io.Copy(io.Discard, req.Body); n != long || err != nil {
				t.Errorf("%d bytes of the next request, error %v", n, err)
			}
			return exchange.NewResponse(201, exchange.FromProxy)
		}, nil, 0)
		l := conntest.Listen(2 * long)
		_, end := s.runs(t, l)
		c, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		next := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", long)
		for _, text := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", next + strings.Repeat("x", long)} {
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		close(written)
		for reader, want := bufio.NewReader(c), 200; want <= 201; want++ {
			if resp, err := http.ReadResponse(reader, nil); err != nil || resp.StatusCode != want {
				t.Errorf("response %v, error %v, want %d", resp, err, want)
			}
		}
		s.Cut()
		end()
	})
}
