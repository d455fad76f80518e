package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// answers answers each request. If known is true, each request makes its client known.
func answers(known bool) handler {
	return func(req *exchange.Request) *exchange.Response {
		if known {
			req.Conn.HoldAs("a", func() (func(), bool) { return func() {}, true })
		}
		resp := exchange.NewResponse(http.StatusOK, exchange.FromProxy)
		resp.Body = exchange.Bytes("hello")
		return resp
	}
}

// ask sends a request. It returns whether the answer says that the connection ends.
func ask(c net.Conn) (ends bool, err error) {
	if _, err := io.WriteString(c, get); err != nil {
		return false, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false, err
	}
	_, err = io.ReadAll(resp.Body)
	return resp.Close, err
}

// Clients that connect after a drain has begun get an answer, for the time of a round trip. Then they
// are refused.
func TestClientsOfADrain(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	begin, end := newServer(answers(false), nil, time.Minute).runs(t, l)
	began, served := time.Now(), 0
	begin()
	for ; ; served++ {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_, err = ask(c)
			_ = c.Close()
		}
		if err != nil {
			break
		}
	}
	if took := time.Since(began); served == 0 || took < roundTripMax {
		t.Errorf("%d clients were served in %v", served, took)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("a later client is not refused")
	}
	end()
}

// While the server drains, a request on its way is answered, and so is the first request of each
// connection. The answer says that the connection ends. Silent connections end at given times.
func TestDrain(t *testing.T) {
	config := tlsConfig(t)
	for name, test := range map[string]struct {
		config *tls.Config
		known  bool
	}{"plain": {nil, false}, "plain, known": {nil, true}, "TLS": {config, false}, "TLS, known": {config, true}} {
		t.Run(name, func(t *testing.T) {
			talk(t, answers(test.known), test.config, unbuffered, func(p *peer) {
				dial := func() net.Conn {
					c := p.dial()
					if test.config != nil {
						secure := overTLS(c, "http/1.1", nil)
						if err := secure.Handshake(); err != nil {
							t.Fatal(err)
						}
						c = secure
					}
					return c
				}
				asks := func(what string, c net.Conn, last bool) {
					t.Helper()
					if ends, err := ask(c); err != nil || ends != last {
						t.Errorf("%s: the answer ends the connection: %t, %v", what, ends, err)
					}
				}
				kept, late, idle := dial(), dial(), dial()
				for _, c := range []net.Conn{kept, late, idle} {
					asks("before the drain", c, false)
				}
				fresh, silent := dial(), dial()
				synctest.Wait()
				began := time.Now()
				_ = p.raw.Close()
				p.drain()
				synctest.Wait()
				if _, err := p.l.Dial(); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("a new client: %v", err)
				}
				asks("on its way", kept, true)
				time.Sleep(roundTripMax - 1)
				asks("within a round trip", late, true)
				ended := func(what string, c net.Conn, at time.Duration) {
					t.Helper()
					if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(began).Round(time.Millisecond) != at {
						t.Errorf("%s: it ended after %v, %v; want %v", what, time.Since(began), err, at)
					}
				}
				ended("idle", idle, roundTripMax)
				time.Sleep(drainTime - time.Since(began))
				asks("a first request", fresh, true)
				ended("silent", silent, drainTime+lastAnswer)
			})
		})
	}
}

// A drain ends requests that go on after the drain time.
func TestDrainEnds(t *testing.T) {
	talk(t, func(req *exchange.Request) *exchange.Response {
		ctx, cancel := context.WithCancel(context.Background())
		defer req.Client.CancelWhenGone(cancel)()
		<-ctx.Done()
		return exchange.ClientGone()
	}, nil, unbuffered, func(p *peer) {
		p.sends(get)
		began := time.Now()
		p.drain()
		_, _ = io.ReadAll(p)
		if took := time.Since(began); took != drainTime+drainGrace {
			t.Errorf("it took %v", took)
		}
	})
}
