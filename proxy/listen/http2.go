package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// http2Streams is how many requests, mostly watches, one connection carries at a time. Beyond
	// that, client-go opens another connection.
	http2Streams = 1000
	// pingAfter is how long a connection may be silent before it gets a PING. pingTimeout is how
	// long it may take to answer.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// http2Frame is the largest frame that is read, in bytes. The library allocates a frame when it
	// knows the length, even if the rest never comes. The protocol allows no smaller limit.
	http2Frame = 16 << 10
	// http2Ahead is how much of a body a client sends before it is read, in bytes. http2AheadAll is
	// the same for all bodies on one connection. It is much larger, because waiting requests must
	// not keep other requests from sending their bodies.
	http2Ahead, http2AheadAll = 128 << 10, 4 << 20
	// strangersMax is how many answers wait for unknown clients, on all connections. Each takes
	// some 16 KiB.
	strangersMax = 1000
)

// newHTTP2 makes the server of HTTP/2 connections. It never listens: serveConn hands it connections
// on which TLS has agreed on HTTP/2.
//
// The library bounds floods. The handler of a stream that was reset counts until it ends, and five
// times http2Streams of such handlers end the connection (x/net v0.17.0). 10,000 unread answers to
// PING, SETTINGS and other frames also end it (v0.0.0-20190813), as do headers that exceed
// MaxHeaderBytes in CONTINUATION frames (v0.23.0). WriteByteTimeout is for a client that reads
// nothing at all: such a client would not answer a PING either.
func (s *Server) newHTTP2() error {
	o := s.Options()
	s.http2.base = &http.Server{
		Handler:        http.HandlerFunc(s.serveHTTP2),
		MaxHeaderBytes: o.Limits.HeaderBytes,
		IdleTimeout:    o.Limits.Idle,
		WriteTimeout:   o.Limits.Write, // for the library's own answers; a handler sets its own
		ErrorLog:       zap.NewStdLog(zap.NewNop()),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          http2Streams,
			MaxReadFrameSize:              http2Frame,
			MaxReceiveBufferPerConnection: http2AheadAll,
			MaxReceiveBufferPerStream:     http2Ahead,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingTimeout,
			WriteByteTimeout:              min(o.Stall, o.Limits.Write),
		},
	}
	s.http2.server = &http2.Server{}                           //nolint:staticcheck // net/http takes listeners only
	return http2.ConfigureServer(s.http2.base, s.http2.server) //nolint:staticcheck // as above
}

// serveHTTP2Conn serves one connection to its end.
func (s *Server) serveHTTP2Conn(c *conn.Conn) {
	ctx := context.WithValue(s.Serving, connKey{}, c)
	defer c.Close()                                                                                                           //nolint:errcheck // nothing more is written
	s.http2.server.ServeConn(&http2Conn{c.Conn.(*tls.Conn), c}, &http2.ServeConnOpts{BaseConfig: s.http2.base, Context: ctx}) //nolint:staticcheck // as above
}

// http2Conn is the connection that the library reads and writes.
type http2Conn struct {
	*tls.Conn
	conn *conn.Conn
}

// Read implements net.Conn. Waiting for an unknown client costs little.
func (c *http2Conn) Read(p []byte) (int, error) {
	if c.conn.Known() {
		return c.Conn.Read(p)
	}
	return c.conn.WaitBelowTLS(func() (int, error) { return c.Conn.Read(p) })
}

// connKey is the key of the *conn.Conn in a request's context.
type connKey struct{}

func connOf(hr *http.Request) *conn.Conn { return hr.Context().Value(connKey{}).(*conn.Conn) }

// serveHTTP2 is where a request enters from HTTP/2. When a watch waits, its stack is almost empty.
func (s *Server) serveHTTP2(w http.ResponseWriter, hr *http.Request) {
	if stream := s.answerHTTP2(w, hr); stream != nil {
		stream()
	}
}

// answerHTTP2 answers a request. If the answer lasts, it returns a function that writes the rest.
func (s *Server) answerHTTP2(w http.ResponseWriter, hr *http.Request) (stream func()) {
	began := time.Now()
	out := &stallStream{ResponseWriter: w, control: http.NewResponseController(w), stall: s.Options().Limits.Write}
	_ = out.control.SetWriteDeadline(time.Time{}) // until there is something to write
	req := s.newHTTP2Request(w, hr)
	rt := exchange.ParseRoute(req.Method, req.Path)
	if s.Draining.Err() != nil || rand.Float64() < s.Options().GoawayChance {
		w.Header().Set("Connection", "close") // the library turns it into GOAWAY
	}
	resp := s.Handler.Handle(hr.Context(), req, &rt)
	s.Handler.Answered(req, rt, resp, time.Since(began))
	maps.Copy(w.Header(), resp.Header)
	if resp.Close {
		w.Header().Set("Connection", "close")
	}
	switch {
	case resp.Stream != nil:
		return s.streamHTTP2(hr.Context(), out, rt, resp)
	case resp.List != nil, resp.Reader != nil:
		s.writeBodyHTTP2(hr.Context(), out, req, resp)
	case resp.Tunnel != nil:
		resp.Tunnel.Abandon() // HTTP/2 has no upgrades
		panic(http.ErrAbortHandler)
	default:
		setLength(w, resp, int64(len(resp.Bytes)))
		w.WriteHeader(resp.Status)
		s.writeHTTP2(out, resp.Bytes, connOf(hr).Known())
	}
	return nil
}

// writeHTTP2 writes a small answer. The library sends it when the handler returns. An answer to an
// unknown client is sent at once, and is counted until the client has taken it.
func (s *Server) writeHTTP2(out *stallStream, answer []byte, known bool) {
	if !known {
		defer s.strangers.Add(-1)
		if s.strangers.Add(1) > strangersMax {
			s.Metrics.ConnectionRefused("strangers")
			panic(http.ErrAbortHandler)
		}
	}
	out.flushes = !known
	_, _ = out.Write(answer) // the client may be gone
}

// setLength sets the length of a body that is known and allowed.
func setLength(w http.ResponseWriter, resp *exchange.Response, length int64) {
	if length >= 0 && resp.Status != http.StatusNoContent && resp.Status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	}
}

func (s *Server) newHTTP2Request(w http.ResponseWriter, hr *http.Request) *exchange.Request {
	req := &exchange.Request{
		Method: hr.Method,
		Target: hr.RequestURI,
		Host:   hr.Host,
		Header: hr.Header,
		Client: http2Client{hr},
		Conn:   connOf(hr),
		TLS:    hr.TLS,
	}
	req.SplitTarget()
	if hr.ContentLength != 0 {
		req.Body = &exchange.Body{From: hr.Body, Length: hr.ContentLength}
		control := http.NewResponseController(w)
		req.Body.Extend = func() { _ = control.SetReadDeadline(req.Body.Deadline(s.Options().Limits.Read)) }
		req.Body.Suspend = func() { _ = control.SetReadDeadline(time.Time{}) }
	}
	return req
}

// http2Client is the stream that a request came by.
type http2Client struct{ *http.Request }

// CancelWhenGone implements exchange.Client.
func (c http2Client) CancelWhenGone(cancel context.CancelFunc) (stop func()) {
	unwatch := context.AfterFunc(c.Context(), cancel)
	return func() { unwatch() }
}

// Interrupt implements exchange.Client.
func (c http2Client) Interrupt() { _ = c.Body.Close() }

// writeBodyHTTP2 writes a list or a reader.
func (s *Server) writeBodyHTTP2(ctx context.Context, out *stallStream, req *exchange.Request, resp *exchange.Response) {
	defer closeBody(resp)
	unknown := resp.Length < 0
	out.flushes = unknown && resp.Reader != nil
	out.pauses = resp.Reader != nil || resp.Turns != nil && (unknown || resp.Length > fair.WriteSize)
	if resp.Lasts {
		out.stall = 0 // a client may stop reading a log
	}
	setLength(out, resp, resp.Length)
	out.WriteHeader(resp.Status)
	if out.flushes {
		_, _ = out.Write(nil) // a client waits for the head of a watch even if no event comes
	}
	if _, err := s.writeBody(ctx, out, req, resp); err != nil {
		panic(http.ErrAbortHandler) // not a clean end
	}
	if out.pauses { // a deadline for what the library has still to write
		out.stall, out.flushes, out.pauses = s.Options().Limits.Write, false, false
		_, _ = out.Write(nil)
	}
}

// stallStream sets a deadline for each write to a stream, unless stall is 0. A client that leaves
// the stream unread loses only this stream. In HTTP/2 a deadline also ends a stream with nothing to
// write. So the deadline is reset if the answer pauses. Otherwise the deadline stays, because the
// library writes the rest when the handler returns. For a short answer, the rest is everything.
type stallStream struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	flushes bool // each write is sent at once
	pauses  bool // the next write may not come soon
}

// Write implements io.Writer.
func (w *stallStream) Write(p []byte) (int, error) {
	if w.stall > 0 {
		if err := w.control.SetWriteDeadline(time.Now().Add(w.stall)); err != nil {
			return 0, err
		}
	}
	n, err := w.ResponseWriter.Write(p)
	if errors.Is(err, http.ErrBodyNotAllowed) {
		n, err = len(p), nil
	}
	if err == nil && w.flushes {
		err = w.control.Flush()
	}
	if err == nil && w.stall > 0 && w.pauses {
		err = w.control.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// streamHTTP2 begins an endless response and returns a function that writes the rest.
func (s *Server) streamHTTP2(ctx context.Context, out *stallStream, rt exchange.Route, resp *exchange.Response) func() {
	out.stall, out.flushes, out.pauses = s.Options().Stall, true, true
	out.WriteHeader(resp.Status)
	if _, err := out.Write(nil); err != nil {
		resp.Stream.Abandon()
		return nil
	}
	s.streams.Add(1)
	open := s.Metrics.WatchOpened(rt)
	return func() {
		defer s.streams.Done()
		defer open.Dec()
		resp.Stream.Run(ctx, &exchange.ChunkWriter{To: out, Unframed: true})
	}
}
