package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// http2Streams is how many requests, watches above all, one connection carries
	// at a time. client-go opens another connection beyond that.
	http2Streams = 1000
	// pingAfter is how long a connection may be silent before it is asked whether it
	// is still there, pingTimeout how long it may take to say so.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// http2Frame is the largest frame that is read, in bytes. The library allocates it when it
	// knows its length, whether or not more comes. It is the smallest that the protocol allows.
	http2Frame = 16 << 10
	// http2Ahead is how much of a body a client sends before it is read, in bytes, and
	// http2AheadAll that of all bodies on one connection. It is much more than the former: requests
	// that wait must not keep others from sending their bodies.
	http2Ahead, http2AheadAll = 128 << 10, 4 << 20
	// strangersMax is how many answers wait for clients that nobody knows, on all connections.
	// Each takes some 16 KiB.
	strangersMax = 1000
)

// newHTTP2 makes the server of HTTP/2 connections. It never listens: serveConn hands
// connections to it on which TLS has agreed on HTTP/2.
//
// The library bounds floods: handlers of streams that were reset count until they end, and five
// times as many as http2Streams end the connection (x/net v0.17.0); so do 10,000 answers to
// PING, SETTINGS and others that the client does not read (v0.0.0-20190813), and headers that
// go on beyond MaxHeaderBytes in CONTINUATION frames (v0.23.0). A client that reads nothing at
// all gets WriteByteTimeout, whatever it has open: it would not answer a PING either.
func (s *Server) newHTTP2() error {
	o := s.options()
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
	s.http2.server = &http2.Server{}                           //nolint:staticcheck // net/http has no entry for a connection that is there already
	return http2.ConfigureServer(s.http2.base, s.http2.server) //nolint:staticcheck // as above
}

// serveHTTP2Conn serves one connection to its end.
func (s *Server) serveHTTP2Conn(c *conn.Conn) {
	ctx := context.WithValue(s.ctx, connKey{}, c)
	defer c.Close()                                                                                                           //nolint:errcheck // nothing more is written
	s.http2.server.ServeConn(&http2Conn{c.Conn.(*tls.Conn), c}, &http2.ServeConnOpts{BaseConfig: s.http2.base, Context: ctx}) //nolint:staticcheck // as above
}

// http2Conn is the connection that the library reads and writes.
type http2Conn struct {
	*tls.Conn
	conn *conn.Conn
}

// Read implements net.Conn. It costs little to wait for a client that nobody knows yet.
func (c *http2Conn) Read(p []byte) (int, error) {
	if c.conn.Known() {
		return c.Conn.Read(p)
	}
	return c.conn.Later(func() (int, error) { return c.Conn.Read(p) })
}

// connKey is where a request's context has its *conn.
type connKey struct{}

func connOf(hr *http.Request) *conn.Conn { return hr.Context().Value(connKey{}).(*conn.Conn) }

// serveHTTP2 is where a request enters from HTTP/2. Little is left on the stack by the time
// that a watch waits.
func (s *Server) serveHTTP2(w http.ResponseWriter, hr *http.Request) {
	if stream := s.answerHTTP2(w, hr); stream != nil {
		stream()
	}
}

// answerHTTP2 answers a request, or returns the rest of an answer that lasts.
func (s *Server) answerHTTP2(w http.ResponseWriter, hr *http.Request) (stream func()) {
	began := time.Now()
	out := s.stalling(w)
	_ = out.control.SetWriteDeadline(time.Time{}) // until there is something to write
	req := s.newHTTP2Request(w, hr)
	rt := exchange.ParseRoute(req.Method, req.Path)
	if s.draining.Err() != nil || rand.Float64() < s.options().GoawayChance {
		w.Header().Set("Connection", "close") // the library turns it into GOAWAY
	}
	resp := s.handler.Handle(hr.Context(), req, &rt)
	s.handler.Answered(req, rt, resp, time.Since(began))
	maps.Copy(w.Header(), resp.Header)
	if resp.Close {
		w.Header().Set("Connection", "close")
	}
	switch {
	case resp.Stream != nil:
		return s.streamHTTP2(hr.Context(), out, rt, resp)
	case resp.List != nil:
		defer resp.CloseList()
		setLength(w, resp, resp.Length)
		w.WriteHeader(resp.Status)
		out.pauses = resp.Turns != nil && (resp.Length < 0 || resp.Length > fair.WriteSize)
		if _, err := resp.WriteList(out); err != nil {
			panic(http.ErrAbortHandler) // not a clean end
		}
		if out.pauses {
			s.finish(out)
		}
	case resp.Reader != nil:
		s.copyHTTP2(hr.Context(), out, req, resp)
	case resp.Tunnel != nil:
		resp.Tunnel.Abandon() // there is no upgrade in HTTP/2, so that no client can have asked
		panic(http.ErrAbortHandler)
	default:
		setLength(w, resp, int64(len(resp.Bytes)))
		w.WriteHeader(resp.Status)
		s.writeHTTP2(out, resp.Bytes, connOf(hr).Known())
	}
	return nil
}

// writeHTTP2 writes a small answer. The library does so when the handler returns, unless the
// client is a stranger: its answers are counted until it has taken them.
func (s *Server) writeHTTP2(out *stallStream, answer []byte, known bool) {
	if !known {
		defer s.strangers.Add(-1)
		if s.strangers.Add(1) > strangersMax {
			s.metrics.ConnectionRefused("strangers")
			panic(http.ErrAbortHandler)
		}
	}
	out.flushes = !known
	_, _ = out.Write(answer) // the client may be gone
}

// setLength tells the length of a body, unless it is unknown or there cannot be one.
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
		Client: &http2Client{request: hr},
		Conn:   connOf(hr),
		TLS:    hr.TLS,
	}
	req.SplitTarget()
	if hr.ContentLength != 0 {
		req.Body = &exchange.Body{From: hr.Body, Length: hr.ContentLength}
		control := http.NewResponseController(w)
		req.Body.Extend = func() { _ = control.SetReadDeadline(req.Body.Deadline(s.options().Limits.Read)) }
		req.Body.Suspend = func() { _ = control.SetReadDeadline(time.Time{}) }
	}
	return req
}

// http2Client is the stream that a request came by.
type http2Client struct {
	request *http.Request
	closing sync.Once
}

// WhenGone implements Client.
func (c *http2Client) WhenGone(gone context.CancelFunc) (stop func()) {
	unwatch := context.AfterFunc(c.request.Context(), gone)
	return func() { unwatch() }
}

// Interrupt implements Client.
func (c *http2Client) Interrupt() {
	c.closing.Do(func() { _ = c.request.Body.Close() })
}

// copyHTTP2 passes a forwarded answer on.
func (s *Server) copyHTTP2(ctx context.Context, out *stallStream, req *exchange.Request, resp *exchange.Response) {
	defer resp.Reader.Close() //nolint:errcheck // it was read to its end, or nobody wants it
	out.flushes = resp.Length < 0
	out.pauses = true
	if resp.Lasts {
		out.stall = 0 // who reads a log may stop to read it
	}
	setLength(out, resp, resp.Length)
	out.WriteHeader(resp.Status)
	if out.flushes {
		_, _ = out.Write(nil) // who waits for a watch to begin has to see that it has
	}
	if _, err := s.passed(ctx, req, resp).WriteTo(out); err != nil {
		panic(http.ErrAbortHandler) // not a clean end
	}
	s.finish(out)
}

// finish gives what the library has still to write a deadline.
func (s *Server) finish(out *stallStream) {
	out.stall, out.flushes, out.pauses = s.options().Limits.Write, false, false
	_, _ = out.Write(nil)
}

// stallStream gives each write to a stream a deadline, unless stall is 0: who leaves it
// unread is cut off, this stream alone. In HTTP/2, a deadline ends a stream on which nothing is
// waiting to be written as well. So it is taken back if the answer pauses. Otherwise it stays
// for what the library writes when the handler returns: all of a short answer.
type stallStream struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	flushes bool // send at once what is written
	pauses  bool // what is still to be written may not be there yet
}

// stalling gives writes the time that answers have.
func (s *Server) stalling(w http.ResponseWriter) *stallStream {
	return &stallStream{ResponseWriter: w, control: http.NewResponseController(w), stall: s.options().Limits.Write}
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
	if err != nil || w.stall == 0 || !w.pauses {
		return n, err
	}
	return n, w.control.SetWriteDeadline(time.Time{})
}

// streamHTTP2 begins an endless response, and returns what writes the rest.
func (s *Server) streamHTTP2(ctx context.Context, out *stallStream, rt exchange.Route, resp *exchange.Response) func() {
	out.stall, out.flushes, out.pauses = s.options().Stall, true, true
	out.WriteHeader(resp.Status)
	if _, err := out.Write(nil); err != nil {
		resp.Stream.Abandon()
		return nil
	}
	s.streams.Add(1)
	open := s.metrics.WatchOpened(rt)
	return func() {
		defer s.streams.Done()
		defer open.Dec()
		resp.Stream.Run(ctx, &exchange.ChunkWriter{To: out, Unframed: true})
	}
}
