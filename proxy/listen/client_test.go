package listen

import (
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

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/watchcache"
)

// get is a request. put is one whose body is x.
const (
	get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	put = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
)

// upload returns the head of a request with a body.
func upload(length int) string {
	return strings.Replace(put[:len(put)-1], "1\r\n\r\n", fmt.Sprint(length, "\r\n\r\n"), 1)
}

// counted counts releases.
type counted int

func (c *counted) Written(int64) { *c++ }

// If the connection breaks before a hijack begins, fasthttp drops the hijack, and what it would have
// released is released.
func TestCloseAbandonsAHijack(t *testing.T) {
	_, server := conntest.Pipe(1)
	var released counted
	var running sync.WaitGroup
	running.Add(1)
	taken := &hijacked{&exchange.Response{Release: &released}, &running}
	_ = (&borrowed{client: &client{Conn: conn.New(server)}, hijacked: taken}).Close()
	running.Wait()
	if released != 1 {
		t.Errorf("released %d times, want once", released)
	}
}

// Fasthttp parses a head again from the start for each byte that follows without an end. So it gets no
// head that it regards as incomplete. A few empty lines before a head are ignored. After more, the
// connection ends: each would cost time, and no limit of a head's size counts them.
func TestHeadsAreWhole(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("\r\n", n) }
	for text, want := range map[string]int{ // the length of the head; 0 if it is not complete, -1 if the connection ends
		get:                               len(get),
		"GET / HTTP/1.0\r\n\r\n":          18,
		"GET / HTTP/1.1\r\nHost: a\r\n":   0,
		"GET / HTTP/1.1\nHost: a\n\n":     0,
		"GET / HTTP/1.1\r\nHost: a\r\n\n": 0,
		"GET / HTTP/1.1\r\nHost: a\n\r\n": 0,
		"GET / HTTP/1.1\r\nHost: a\r\r\n": 0,
		lines(emptyMax/2) + get:           len(get),
		lines(emptyMax/2 + 1):             -1,
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, accepted := conntest.Pipe(readSize)
			c, served := &client{Conn: conn.New(accepted)}, make(chan error, 1)
			go func() { served <- c.await(true, newServer(nil, nil, 0).Limits()) }()
			for _, b := range []byte(text) {
				if _, err := theirs.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			got := 0
			select {
			case err := <-served:
				if got = c.head; err != nil {
					got = -1
				}
			default:
				_ = theirs.Close()
				<-served
			}
			if got != want {
				t.Errorf("%q is a head of %d bytes, want %d", text, got, want)
			}
		})
	}
}

// Fasthttp takes quadratic time for a path, so long ones are refused before it sees them.
func TestLongPathsAreRefused(t *testing.T) {
	const long = 40 << 10
	for target, want := range map[string]int{
		"/?" + strings.Repeat("a", long):         http.StatusOK,
		"/" + strings.Repeat("a", pathMost/2):    http.StatusOK,
		"/" + strings.Repeat("/.", pathMost/2):   http.StatusRequestHeaderFieldsTooLarge,
		"/" + strings.Repeat("a", long):          http.StatusRequestHeaderFieldsTooLarge,
		"/" + strings.Repeat("a", long) + "?a=b": http.StatusRequestHeaderFieldsTooLarge,
	} {
		handled := 0
		talk(t, func(*exchange.Request) *exchange.Response {
			handled++
			return exchange.NewResponse(http.StatusOK, exchange.FromProxy)
		}, nil, 2*long, func(p *peer) {
			p.sends(strings.Replace(get, "/", target, 1))
			if resp, _, err := p.reads(); resp.StatusCode != want || err != nil || (handled > 0) != (want == http.StatusOK) {
				t.Errorf("%.10s…: response %d, error %v, handled %d times", target, resp.StatusCode, err, handled)
			}
		})
	}
}

// headsPart is the number of bytes of incomplete requests that unknown clients may hold, and also the
// number that known clients may hold.
const headsPart = 16 << 20

// Begun requests are bounded, also those of known clients: incomplete heads, and the memory that fasthttp
// holds while it waits for the beginning of a body. A client fills half of its part. Other clients, and
// the clients of the other part, find room. All bytes are given back.
func TestBegunRequestsAreBounded(t *testing.T) {
	field := "X: " + strings.Repeat("x", 60<<10)
	body := strings.Replace(upload(9999), "\r\n\r\n", "\r\n"+field+"\r\n\r\nx", 1)
	for name, test := range map[string]struct {
		known bool
		begun string
		size  int // what counts, in bytes
	}{
		"heads":           {false, "GET / HTTP/1.1\r\n" + field, 60 << 10},
		"heads, known":    {true, "GET / HTTP/1.1\r\n" + field, 60 << 10},
		"bodies":          {false, body, 70 << 10},
		"bodies, known":   {true, body, 70 << 10},
		"bodies of many":  {false, strings.Replace(upload(9999), "\r\n\r\n", "\r\n"+strings.Repeat("x:\r\n", 10000)+"\r\n", 1), 1 << 20},
		"expected bodies": {false, strings.Replace(upload(99999), "Host", "Expect: 100-continue\r\nHost", 1), 10 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			user := "greedy"
			talk(t, func(req *exchange.Request) *exchange.Response {
				if test.known {
					req.Conn.HoldAs(user, func() (func(), bool) { return func() {}, true })
				}
				return exchange.NewResponse(200, exchange.FromProxy)
			}, nil, readSize+len(test.begun), func(p *peer) {
				begin := func(network byte) (c *conntest.Socket, refused bool) {
					t.Helper()
					dialed, err := p.l.DialFrom(&net.TCPAddr{IP: net.IPv4(192, 0, 2, network)})
					if err != nil {
						t.Fatal(err)
					}
					p.Conn, c = dialed, dialed.(*conntest.Socket)
					if test.known {
						p.sends(get)
						_, _ = c.ReadNow(make([]byte, 1<<10))
					}
					p.sends(test.begun)
					_, err = c.ReadNow(make([]byte, 1<<10))
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
						_ = c.Close()
					}
					synctest.Wait()
				}
				if n := testutil.ToFloat64(p.server.Metrics.Refused.WithLabelValues("heads")); n == 0 {
					t.Error("the refusals are not counted")
				}
			})
		})
	}
}

// Bytes that a client sends ahead while its request is answered count like a head. A client without
// room for them, or that sends more than AheadMax, counts as gone. A request whose handler runs counts no
// longer as begun, and neither does a body that was read.
func TestBytesAheadAreBounded(t *testing.T) {
	const clients = headsPart / (60 << 10)
	for name, test := range map[string]struct {
		head        string
		sent        int
		least, most int // how many clients stay
	}{
		"some":       {get, 60 << 10, clients * 3 / 8, clients * 11 / 20},
		"too much":   {get, exchange.AheadMax, 0, 0},
		"body":       {upload(2), 2, 900, 900},
		"whole body": {upload(60 << 10), 60 << 10, clients, clients},
	} {
		t.Run(name, func(t *testing.T) {
			var release chan struct{}
			var gone, whole atomic.Int64
			talk(t, func(req *exchange.Request) *exchange.Response {
				ctx, left := context.WithCancel(context.Background())
				stop := req.Client.CancelWhenGone(left)
				if req.Body != nil { // until all of the body was sent
					time.Sleep(aheadGrace)
					stop()
					if all, err := io.ReadAll(req.Body); len(all) == test.sent && err == nil {
						whole.Add(1)
					}
				}
				select {
				case <-ctx.Done():
					gone.Add(1)
				case <-release:
				}
				stop()
				return exchange.NewResponse(200, exchange.FromProxy)
			}, nil, test.sent, func(p *peer) {
				release = make(chan struct{})
				n := max(clients, test.most)
				for range n {
					p.Conn = p.dial()
					defer p.Close()
					p.sends(test.head, strings.Repeat("x", test.sent))
					time.Sleep(2 * aheadGrace)
				}
				if there := n - int(gone.Load()); there > test.most || there < test.least {
					t.Errorf("%d clients of %d are there, want %d to %d", there, n, test.least, test.most)
				}
				if got := int(whole.Load()); test.head != get && got != n {
					t.Errorf("%d bodies of %d were read", got, n)
				}
				close(release)
				p.server.Life.Cut()
			})
		})
	}
}

// A connection ends if a request does not come, or not completely, in time, and at once if its head is
// too long.
func TestWaitsAreLimited(t *testing.T) {
	limits := newServer(nil, nil, 0).Limits()
	const refused = "HTTP/1.1 4"
	config := tlsConfig(t)
	for name, test := range map[string]struct {
		sent, slowly string
		ends         time.Duration
		answer       string // its beginning
		config       *tls.Config
	}{
		"silent, over TLS":   {ends: 10 * time.Second, config: config},
		"silent":             {ends: limits.Read},
		"silent, after one":  {sent: get, ends: limits.Idle, answer: "HTTP/1.1 200"},
		"slow":               {slowly: "GET / HTTP/1.1\r\nHost: a", ends: limits.Read, answer: refused},
		"slow, after one":    {sent: get, slowly: "GET / HTTP/1.1", ends: limits.Read, answer: "HTTP/1.1 200"},
		"without its body":   {sent: upload(5), ends: limits.Read, answer: refused},
		"too long":           {sent: get[:20] + strings.Repeat("x", limits.HeaderBytes), answer: refused + "31"},
		"too long, for ever": {sent: get[:20] + strings.Repeat("x", 2*limits.HeaderBytes), answer: refused + "31"},
	} {
		t.Run(name, func(t *testing.T) {
			talk(t, answers(false), test.config, 1<<20, func(p *peer) {
				p.Conn = p.raw
				p.sends(test.sent)
				began := time.Now()
				var writing sync.WaitGroup
				writing.Go(func() {
					for _, b := range []byte(test.slowly) {
						_, _ = p.Write([]byte{b})
						time.Sleep(limits.Read / time.Duration(len(test.slowly)-1))
					}
				})
				answer, _ := io.ReadAll(p)
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
	interrupted := strings.Replace(put, "/", "/interrupted", 1)
	for name, test := range map[string]struct {
		before, request string
		drains          bool
		after           time.Duration
	}{
		"a request":             {request: get, after: time.Hour},
		"with a body":           {request: put, after: time.Hour},
		"after an interruption": {before: interrupted, request: get, after: time.Hour},
		"after an empty line":   {request: get + "\r\n", after: time.Hour},
		"in a drain":            {before: interrupted, request: get, drains: true, after: 2 * roundTripMax},
	} {
		t.Run(name, func(t *testing.T) {
			var left time.Time
			talk(t, func(req *exchange.Request) *exchange.Response {
				if req.Body != nil {
					_, _ = io.ReadAll(req.Body)
				}
				if req.Path == "/interrupted" {
					req.Client.Interrupt()
					return exchange.NewResponse(200, exchange.FromProxy)
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer req.Client.CancelWhenGone(cancel)()
				<-ctx.Done()
				left = time.Now()
				return exchange.ClientGone()
			}, nil, readSize, func(p *peer) {
				if p.sends(test.before, test.request); test.drains {
					p.drain()
				}
				time.Sleep(test.after)
				leaves := time.Now()
				_ = p.Close()
				if synctest.Wait(); left != leaves {
					t.Errorf("it is noticed at %v, the client left at %v", left, leaves)
				}
			})
		})
	}
}

// A chunked body that ends between two chunks is broken, although fasthttp takes its end for the last
// chunk. After an interruption, no read of a body waits for the client.
func TestBrokenBodies(t *testing.T) {
	const head = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	for body, whole := range map[string]bool{"1\r\nx\r\n0\r\n\r\n": true, "1\r\nx\r\n": false, "1\r\nx": false, "2\r\nx": false, "": false} {
		var read error
		talk(t, func(req *exchange.Request) *exchange.Response {
			_, read = io.ReadAll(req.Body)
			return exchange.NewResponse(200, exchange.FromProxy)
		}, nil, readSize, func(p *peer) { p.sends(head, body) })
		if (read == nil) != whole {
			t.Errorf("%q is read: %v", body, read)
		}
	}
	talk(t, func(req *exchange.Request) *exchange.Response {
		began := time.Now()
		req.Client.Interrupt()
		if _, err := io.ReadAll(req.Body); err == nil || !time.Now().Equal(began) {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		return exchange.NewResponse(200, exchange.FromProxy)
	}, nil, 1<<20, func(p *peer) { p.sends(upload(1<<20) + strings.Repeat("x", bodyBegin)) })
}

// An answer may precede the end of a body. The client may go on to send it for a time, because a reset
// could overtake the answer.
func TestEarlyAnswersAreRead(t *testing.T) {
	talk(t, answers(false), nil, readSize, func(p *peer) {
		p.sends(upload(1 << 20))
		for range 3 * bodyBegin / readSize {
			p.sends(strings.Repeat("x", readSize))
		}
		if answer, err := io.ReadAll(p); err != nil || !strings.Contains(string(answer), "hello") {
			t.Errorf("it reads %q, %v", answer, err)
		}
		time.Sleep(10 * time.Second)
		if p.server.Connections() != 0 {
			t.Error("the connection does not end")
		}
	})
}

// A client that does not read the beginning of an answer is disconnected: that of a watch, and also if
// fasthttp has found no request.
func TestUnreadHeadIsCut(t *testing.T) {
	for text, most := range map[string]time.Duration{"malformed\r\n\r\n": time.Minute, get: stall} {
		var c *watchcache.Cache
		talk(t, func(*exchange.Request) *exchange.Response {
			resp := exchange.NewResponse(200, exchange.FromCache)
			resp.Body = watch.New(watchOf(t, c))
			return resp
		}, nil, 10, func(p *peer) {
			c, _ = cachetest.ConfigMaps(t, 1)
			go func() { _, _ = io.WriteString(p, text) }()
			time.Sleep(most - 1)
			if p.server.Connections() != 1 {
				t.Errorf("%q: it has ended", text)
			}
			time.Sleep(2 * time.Nanosecond)
			if p.server.Connections() != 0 {
				t.Errorf("%q: it is still there", text)
			}
		})
	}
}

// A client that has read a response may send its next request, however long, before the server sees that
// the response has ended.
func TestLongRequestFollowsAtOnce(t *testing.T) {
	const long = 4 * exchange.AheadMax
	var written chan struct{}
	talk(t, func(req *exchange.Request) *exchange.Response {
		if req.Body == nil {
			defer req.Client.CancelWhenGone(func() { t.Error("the client counts as gone") })()
			<-written // as if the response were written
			return exchange.NewResponse(200, exchange.FromProxy)
		}
		if n, err := io.Copy(io.Discard, req.Body); n != long || err != nil {
			t.Errorf("%d bytes of the next request, error %v", n, err)
		}
		return exchange.NewResponse(201, exchange.FromProxy)
	}, nil, 2*long, func(p *peer) {
		written = make(chan struct{})
		p.sends(get, upload(long)+strings.Repeat("x", long))
		close(written)
		for want := 200; want <= 201; want++ {
			if resp, _, err := p.reads(); resp.StatusCode != want || err != nil {
				t.Errorf("response %d, error %v, want %d", resp.StatusCode, err, want)
			}
		}
	})
}
