package proxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
)

const (
	// http2Streams is how many requests, watches above all, one connection carries
	// at a time. client-go opens another connection beyond that.
	http2Streams = 1000
	// pingAfter is how long a connection may be silent before it is asked whether it
	// is still there, pingTimeout how long it may take to say so.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// newHTTP2 makes the server of HTTP/2 connections. It never listens: fasthttp hands
// connections to it on which TLS has agreed on HTTP/2. That many streams are opened
// only to be reset at once is dealt with by the library, which counts those that
// still run.
func (s *Server) newHTTP2() error {
	s.http2.base = &http.Server{
		Handler:        http.HandlerFunc(s.serveHTTP2),
		MaxHeaderBytes: s.options.Load().Limits.HeaderBytes,
		IdleTimeout:    s.options.Load().Limits.Idle,
		ErrorLog:       zap.NewStdLog(zap.NewNop()),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: http2Streams,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingTimeout,
			WriteByteTimeout:     s.options.Load().Stall,
		},
	}
	s.http2.server = &http2.Server{}                           //nolint:staticcheck // net/http has no entry for a connection that is there already
	return http2.ConfigureServer(s.http2.base, s.http2.server) //nolint:staticcheck // as above
}

// serveHTTP2Conn serves one connection to its end.
func (s *Server) serveHTTP2Conn(c net.Conn) error {
	ours := c.(*conn)
	raw := ours.Conn // with its TLS state
	defer context.AfterFunc(s.ctx, func() { _ = raw.Close() })()
	ctx := context.WithValue(s.ctx, connKey{}, ours)
	s.http2.server.ServeConn(raw, &http2.ServeConnOpts{BaseConfig: s.http2.base, Context: ctx}) //nolint:staticcheck // as above
	return ours.Close()
}

// connKey is where a request's context has its *conn.
type connKey struct{}

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
	req := s.newHTTP2Request(w, hr)
	rt := parseRoute(req.method, req.path)
	if s.draining.Err() != nil || rand.Float64() < s.options.Load().GoawayChance {
		w.Header().Set("Connection", "close") // the library turns it into GOAWAY
	}
	resp := s.guarded(hr.Context(), req, &rt)
	s.answered(req, rt, resp, time.Since(began))
	maps.Copy(w.Header(), resp.header)
	if resp.close {
		w.Header().Set("Connection", "close")
	}
	switch {
	case resp.stream != nil, resp.watch != nil:
		return s.streamHTTP2(hr.Context(), w, rt, resp)
	case resp.list != nil:
		setLength(w, resp, resp.length)
		w.WriteHeader(resp.status)
		_, _ = buffered{resp.list}.WriteTo(s.stalling(w, s.options.Load().Limits.Write)) // the client may be gone
	case resp.reader != nil:
		s.copyHTTP2(w, resp)
	case resp.tunnel != nil:
		resp.abandon() // there is no upgrade in HTTP/2, so that no client can have asked
		panic(http.ErrAbortHandler)
	default:
		setLength(w, resp, int64(len(resp.bytes)))
		w.WriteHeader(resp.status)
		_, _ = s.stalling(w, s.options.Load().Limits.Write).Write(resp.bytes) // the client may be gone
	}
	return nil
}

// setLength tells the length of a body, unless it is unknown or there cannot be one.
func setLength(w http.ResponseWriter, resp *response, length int64) {
	if length >= 0 && resp.status != http.StatusNoContent && resp.status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	}
}

func (s *Server) newHTTP2Request(w http.ResponseWriter, hr *http.Request) *request {
	req := &request{
		method: hr.Method,
		target: hr.RequestURI,
		host:   hr.Host,
		header: hr.Header,
		client: &http2Client{request: hr},
		conn:   hr.Context().Value(connKey{}).(*conn),
		tls:    hr.TLS,
	}
	req.splitTarget()
	if hr.ContentLength != 0 {
		req.body = &body{from: hr.Body, length: hr.ContentLength}
		control := http.NewResponseController(w)
		req.body.extend = func() { _ = control.SetReadDeadline(time.Now().Add(s.options.Load().Limits.Read)) }
	}
	return req
}

// http2Client is the stream that a request came by.
type http2Client struct {
	request *http.Request
	closing sync.Once
}

// whenGone implements client.
func (c *http2Client) whenGone(gone context.CancelFunc) (stop func()) {
	unwatch := context.AfterFunc(c.request.Context(), gone)
	return func() { unwatch() }
}

// interrupt implements client.
func (c *http2Client) interrupt() {
	c.closing.Do(func() { _ = c.request.Body.Close() })
}

// copyHTTP2 passes a forwarded answer on.
func (s *Server) copyHTTP2(w http.ResponseWriter, resp *response) {
	defer resp.reader.Close() //nolint:errcheck // it was read to its end, or nobody wants it
	out := s.stalling(w, s.options.Load().Limits.Write)
	out.flushes = resp.length < 0
	if resp.lasts {
		out.stall = 0 // who reads a log may stop to read it
	}
	setLength(w, resp, resp.length)
	w.WriteHeader(resp.status)
	if out.flushes {
		_, _ = out.Write(nil) // who waits for a watch to begin has to see that it has
	}
	if _, err := io.Copy(out, onlyReader{resp.reader}); err != nil {
		panic(http.ErrAbortHandler) // not a clean end
	}
}

type onlyReader struct{ io.Reader }

// stallStream gives each write to a stream a deadline, unless stall is 0: who leaves it
// unread is cut off, this stream alone.
type stallStream struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	flushes bool // send at once what is written
}

func (*Server) stalling(w http.ResponseWriter, stall time.Duration) *stallStream {
	return &stallStream{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
}

// Write implements io.Writer. The deadline is taken back when all is written: in
// HTTP/2 it would end a stream on which nothing is waiting to be written.
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
	if err != nil || w.stall == 0 {
		return n, err
	}
	return n, w.control.SetWriteDeadline(time.Time{})
}

// streamHTTP2 begins an endless response, and returns what writes the rest.
func (s *Server) streamHTTP2(ctx context.Context, w http.ResponseWriter, rt route, resp *response) func() {
	out := s.stalling(w, s.options.Load().Stall)
	out.flushes = true
	w.WriteHeader(resp.status)
	if _, err := out.Write(nil); err != nil {
		resp.abandon()
		return nil
	}
	s.streams.Add(1)
	open := s.metrics.watchOpened(rt)
	return func() {
		defer s.streams.Done()
		defer open.Dec()
		resp.run(ctx, &chunkWriter{w: out, unframed: true})
	}
}
