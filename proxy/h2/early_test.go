package h2

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// watched is a server's socket that keeps each of its writes.
type watched struct {
	*conntest.Socket
	mu     sync.Mutex
	writes [][]byte
}

// Write implements net.Conn.
func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Socket.Write(p)
	w.keep(p[:n])
	return n, err
}

// WriteNow is like conntest's.
func (w *watched) WriteNow(p []byte) (int, error) {
	n, err := w.Socket.WriteNow(p)
	w.keep(p[:n])
	return n, err
}

func (w *watched) keep(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, bytes.Clone(p))
}

// frames returns the numbers of the writes that contain wanted frames.
func (w *watched) frames(t *testing.T, wanted func(http2.Frame) bool) (in []int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range w.writes {
		f := http2.NewFramer(nil, bytes.NewReader(p))
		for {
			read, err := f.ReadFrame()
			if err != nil {
				break
			}
			if wanted(read) {
				in = append(in, i)
			}
		}
	}
	return in
}

// early is a client whose uploads are answered before they end.
type early struct {
	*peer
	closes bool // responses end the connection
	socket *watched
	conns  chan *Conn
	conn   *Conn
}

func dialEarly(t *testing.T, reads int, by func(net.Conn) *conn.Conn) *early {
	t.Helper()
	e := &early{conns: make(chan *Conn, 2*100+10)}
	s := newServer(func(_ context.Context, req *exchange.Request) *exchange.Response {
		e.conns <- req.Client.(*stream).c
		for range reads {
			_, _ = req.Body.Read(make([]byte, 1))
		}
		resp := says("too large")
		resp.Status, resp.Close = http.StatusRequestEntityTooLarge, e.closes
		return resp
	}, options())
	client, accepted := conntest.Pipe(1 << 20)
	e.socket = &watched{Socket: accepted}
	e.peer = greet(t, s, client, by(e.socket), nil)
	return e
}

// answered sends a part of an upload and reads the response to its end.
func (e *early) answered(id uint32) {
	e.t.Helper()
	e.request(id, false, http.MethodPost)
	e.sent(e.WriteData(id, false, make([]byte, 10000)))
	e.until("end of the response", ended(id))
	e.conn = <-e.conns
	synctest.Wait()
}

// ponged answers the next PING.
func (e *early) ponged() {
	e.t.Helper()
	ping := e.until("ping", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing }).(*http2.PingFrame)
	e.sent(e.WritePing(true, ping.Data))
	synctest.Wait()
}

// expect checks the number of RST_STREAM for a stream, and that the window of the connection is
// complete.
func (e *early) expect(what string, id uint32, resets int) {
	e.t.Helper()
	e.sent(e.WritePing(false, [8]byte{1}))
	e.until("pong", pong)
	synctest.Wait()
	if got := e.socket.frames(e.t, isReset(id)); len(got) != resets {
		e.t.Errorf("%s: %d RST_STREAM, want %d", what, len(got), resets)
	}
	if got := e.conn.received.Load(); got != windowConn {
		e.t.Errorf("%s: %d of %d bytes are left of the window", what, got, windowConn)
	}
}

// If a response ends before its request, one RST_STREAM follows it in a later write, after the client
// has read the response. The bytes that arrive until then are given back to the connection's window.
func TestEarlyResponse(t *testing.T) {
	for name, reads := range map[string]int{"unread": 0, "partly read": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := dialEarly(t, reads, known)
				e.answered(1)
				e.sent(e.WriteData(1, false, make([]byte, 10000)))
				synctest.Wait()
				if in := e.socket.frames(t, isReset(1)); len(in) != 0 {
					t.Fatalf("writes %v have RST_STREAM, write %v the end of the response", in, e.socket.frames(t, ended(1)))
				}
				e.ponged()
				if f := e.until("reset", isReset(1)).(*http2.RSTStreamFrame); f.ErrCode != http2.ErrCodeNo {
					t.Error(f)
				}
				for range 20 { // these bytes were on their way
					e.sent(e.WriteData(1, false, make([]byte, 10000)))
				}
				e.ponged()
				e.expect("after the end", 1, 1)
				if late := e.conn.mu.early.Late(1, false); late {
					t.Error("the stream is kept")
				}
			})
		})
	}
}

// If the client ends or cancels its request after the response, no RST_STREAM follows.
func TestEarlyResponseToWholeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := dialEarly(t, 0, known)
		for i, end := range []func(id uint32) error{
			func(id uint32) error { return e.WriteData(id, true, make([]byte, 10000)) },
			func(id uint32) error { return e.WriteRSTStream(id, http2.ErrCodeCancel) },
			func(id uint32) error {
				return e.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, EndHeaders: true})
			},
		} {
			id := uint32(2*i + 1)
			e.answered(id)
			e.sent(end(id))
			e.ponged()
			e.expect("after the end", id, 0)
		}
	})
}

// A client that answers no PING gets RST_STREAM with the response once too many streams wait for it.
func TestEarlyResponsesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := dialEarly(t, 0, known)
		const most = 100
		// Without DATA: a frame that arrives after RST_STREAM would be answered by another one.
		for i := range uint32(most + 1) {
			e.request(2*i+1, false, http.MethodPost)
			e.until("end of the response", ended(2*i+1))
			e.conn = <-e.conns
			synctest.Wait()
		}
		if got := e.socket.frames(t, func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream }); len(got) != 1 {
			t.Errorf("%d of %d streams are reset", len(got), most+1)
		}
		e.expect("the last stream", 2*most+1, 1)
	})
}

// If the connection ends with an early response, RST_STREAM comes before its end.
func TestEarlyResponseEndsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := dialEarly(t, 0, known)
		e.closes = true
		e.request(1, false, http.MethodPost)
		e.answersDrain()
		e.until("end of the response", ended(1))
		if f := e.until("reset", isReset(1)).(*http2.RSTStreamFrame); f.ErrCode != http2.ErrCodeNo {
			t.Error(f)
		}
		in, end := e.socket.frames(t, isReset(1)), e.socket.frames(t, ended(1))
		if len(in) != 1 || len(end) != 1 || in[0] <= end[0] {
			t.Errorf("writes %v have RST_STREAM, writes %v the end of the response", in, end)
		}
	})
}

// A stranger's upload is refused early. RST_STREAM follows once the client has read the response, and
// ends the connection. If the client does not say so, the connection ends soon.
func TestEarlyResponseToStranger(t *testing.T) {
	for name, answers := range map[string]bool{"reads": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := dialEarly(t, 0, conn.New)
				began := time.Now()
				e.answered(1)
				if in := e.socket.frames(t, isReset(1)); len(in) != 0 {
					t.Errorf("writes %v have RST_STREAM, before the client has read the response", in)
				}
				if answers {
					e.ponged()
				}
				e.until("reset", isReset(1))
				_, _ = io.Copy(io.Discard, e)
				e.Close()
				<-e.served
				if took := time.Since(began); took > drainGrace || answers && took > 0 {
					t.Errorf("the connection ends after %s", took)
				}
			})
		})
	}
}
