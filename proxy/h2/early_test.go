package h2

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// If a response ends before its request, RST_STREAM follows it. The bytes that are on their way then
// are given back to the connection's window. A connection that is a stranger's, or drains, ends after the
// response. A 503 does not end a stranger's.
func TestEarlyResponse(t *testing.T) {
	for name, test := range map[string]struct {
		reads    int
		status   int
		stranger bool
		ends     bool
	}{
		"unread":        {status: http.StatusRequestEntityTooLarge},
		"partly read":   {reads: 1, status: http.StatusRequestEntityTooLarge},
		"stranger":      {status: http.StatusUnauthorized, stranger: true, ends: true},
		"stranger, 503": {status: http.StatusServiceUnavailable, stranger: true},
		"drains":        {status: http.StatusRequestEntityTooLarge, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conns := make(chan *Conn, 1)
				s := newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
					conns <- req.Client.(*stream).c
					_, _ = req.Body.Read(make([]byte, test.reads))
					resp := says("too large")
					resp.Status, resp.Close = test.status, test.ends
					return resp
				}, options())
				client, accepted := conntest.Pipe(1 << 20)
				by := known
				if test.stranger {
					by = conn.New
				}
				p, began := greet(t, s, client, by(accepted), nil), time.Now()
				p.request(1, false, http.MethodPost)
				p.sent(p.WriteData(1, false, make([]byte, 10000)))
				if test.ends && !test.stranger {
					p.answersDrain()
				}
				p.until("end of the response", ended(1))
				if f := p.until("reset", isReset(1)).(*http2.RSTStreamFrame); f.ErrCode != http2.ErrCodeNo {
					t.Error(f)
				}
				if test.ends {
					_, _ = io.Copy(io.Discard, p)
					p.Close()
					<-p.served
					if took := time.Since(began); took > 0 {
						t.Errorf("the connection ends after %s", took)
					}
					return
				}
				for range 2 * wastedMax { // these bytes were on their way
					p.sent(p.WriteData(1, false, make([]byte, 1000)))
				}
				p.sent(p.WritePing(false, [8]byte{1}))
				p.until("pong", pong)
				synctest.Wait()
				if got := (<-conns).received.Load(); got != windowConn {
					t.Errorf("%d of %d bytes are left of the window", got, windowConn)
				}
			})
		})
	}
}

// If the client ends or cancels its request after the response, the connection goes on. A request that
// has ended before gets no RST_STREAM.
func TestEarlyResponseToWholeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := dial(t, newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
			if req.Method == http.MethodPut {
				_, _ = io.Copy(io.Discard, req.Body)
			}
			return says("done")
		}, options()))
		for i, end := range []func(id uint32) error{
			func(id uint32) error { return p.WriteData(id, true, make([]byte, 10000)) },
			func(id uint32) error { return p.WriteRSTStream(id, http2.ErrCodeCancel) },
			func(id uint32) error {
				return p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, EndHeaders: true})
			},
		} {
			id := uint32(2*i + 1)
			p.request(id, false, http.MethodPost)
			p.until("reset", isReset(id))
			p.sent(end(id))
		}
		p.request(7, false, http.MethodPut)
		p.sent(p.WriteData(7, true, make([]byte, 10)))
		p.until("end of the response", ended(7))
		p.sent(p.WritePing(false, [8]byte{1}))
		p.until("pong", func(f http2.Frame) bool {
			if isReset(7)(f) {
				t.Error("a whole request is reset")
			}
			return pong(f)
		})
	})
}
