package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
)

// newHTTP1 makes a server for requests with heads of up to so many bytes. It never listens.
func (s *Server) newHTTP1(head int) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               s.serve,
		Concurrency:           1 << 20,
		ReadBufferSize:        head,
		ReadTimeout:           s.options.Load().Limits.Read,
		StreamRequestBody:     true,
		KeepHijackedConns:     true,
		MaxRequestBodySize:    bodyAhead,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		SecureErrorLogMessage: true,

		DisablePreParseMultipartForm: true,
		Logger:                       quiet{s.log},
		ConnState: func(c net.Conn, state fasthttp.ConnState) {
			if state == fasthttp.StateIdle || state == fasthttp.StateActive {
				c.(*conn).turn.idle = state == fasthttp.StateIdle
			}
		},
	}
}

// quiet takes fasthttp's log: broken connections are daily bread.
type quiet struct{ log *zap.Logger }

// Printf implements fasthttp.Logger.
func (q quiet) Printf(format string, args ...any) { q.log.Debug(fmt.Sprintf(format, args...)) }

// serveConn serves a connection until it ends or is a stream. Each wait is in a new goroutine,
// as the stack of one that was busy stays large.
func (s *Server) serveConn(c *conn) {
	switch protocol, err := c.handshake(); {
	case err != nil:
		_ = c.Close() // there is nobody to tell
	case protocol == http2.NextProtoTLS:
		s.serving.Go(func() { s.serveHTTP2Conn(c) })
	default:
		s.serving.Go(func() { s.serveRequests(c, true) })
	}
}

// serveRequests waits for a request and serves those that come in a row.
func (s *Server) serveRequests(c *conn, first bool) {
	if !s.await(c, first) {
		_ = c.Close() // nothing more is written
		return
	}
	server := s.http.short
	if c.head == 0 || c.head > shortHead {
		server = s.http.long
	}
	if err := server.ServeConn(c); err != nil {
		s.log.Debug("connection broken", zap.Error(err)) // daily bread
	}
	if c.turn.again {
		s.serving.Go(func() { s.serveRequests(c, false) })
	}
}

// await waits for a request, or for the end of a connection.
func (s *Server) await(c *conn, first bool) bool {
	ok, refused := c.await(first, s.options.Load().Limits, &s.heads)
	if refused {
		s.metrics.connectionRefused("heads")
	}
	return ok
}

// serve is where a request enters from fasthttp.
func (s *Server) serve(fctx *fasthttp.RequestCtx) {
	began := time.Now()
	c := fctx.Conn().(*conn)
	c.stall = s.options.Load().Limits.Write
	req := s.newRequest(fctx)
	resp := misread(&fctx.Request.Header, req.header)
	rt := parseRoute(req.method, req.path)
	if req.endsConnection() {
		fctx.SetConnectionClose() // fasthttp heeds only a lone lower-case close
	}
	if resp == nil {
		resp = s.guarded(s.ctx, req, &rt)
	}
	s.answered(req, rt, resp, time.Since(began))
	s.render(fctx, req, rt, resp)
	if resp.close || s.draining.Err() != nil {
		fctx.SetConnectionClose()
	}
	if req.body != nil && !req.body.ended.Load() {
		fctx.SetConnectionClose()
		c.unread = true
	}
}

func (s *Server) newRequest(fctx *fasthttp.RequestCtx) *request {
	h := &fctx.Request.Header
	c := fctx.Conn().(*conn)
	req := &request{
		method: string(h.Method()),
		target: string(h.RequestURI()),
		host:   string(h.Host()),
		header: make(http.Header, 16),
		client: c,
		conn:   c,
		tls:    c.state,
	}
	req.splitTarget()
	// As they came: All would join, drop or reorder some of them.
	for name, value := range h.AllInOrder() {
		name := http.CanonicalHeaderKey(string(name))
		req.header[name] = append(req.header[name], string(value))
	}
	if length := int64(h.ContentLength()); length > 0 || length == -1 { // fasthttp: -1 chunked, -2 none
		req.body = &body{from: fctx.RequestBodyStream(), cut: &c.eof, length: length}
		req.body.extend = func() { c.readUntil(req.body.deadline(s.options.Load().Limits.Read)) }
	} else {
		c.unlimited() // fasthttp's deadline was for the headers
	}
	return req
}

// render hands a response to fasthttp.
func (s *Server) render(fctx *fasthttp.RequestCtx, req *request, rt route, resp *response) {
	old := !fctx.Request.Header.IsHTTP11() // HTTP/1.0 has no chunks: the end of the connection ends the body
	switch {
	case resp.stream != nil, resp.watch != nil:
		s.hijack(fctx, resp.abandon, func(c *conn, _ net.Conn) { s.runStream(c, rt, resp, old) })
		return
	case resp.list != nil && resp.length < 0 && old:
		s.hijack(fctx, resp.closeList, func(c *conn, _ net.Conn) { writeUnframed(c, resp) })
		return
	case resp.reader != nil && resp.length < 0 && old && req.body == nil: // a hijack lets go of the body
		s.hijack(fctx, func() { _ = resp.reader.Close() }, func(c *conn, _ net.Conn) {
			if resp.lasts {
				c.stall = 0
			}
			copyUnframed(c, resp)
		})
		return
	case resp.tunnel != nil:
		s.hijack(fctx, resp.abandon, func(c *conn, buffered net.Conn) {
			c.stall = 0
			_, _ = c.Write(head(resp)) // if the client is gone, the tunnel finds out
			resp.tunnel(c, buffered)
		})
		return
	}
	fctx.SetStatusCode(resp.status)
	for name, values := range resp.header {
		for i, v := range values {
			if i == 0 {
				fctx.Response.Header.Set(name, v)
			} else {
				fctx.Response.Header.Add(name, v)
			}
		}
	}
	switch {
	case resp.reader != nil && req.method == http.MethodHead:
		// fasthttp would end a body that there is none of.
		_ = resp.reader.Close()
		fctx.Response.SkipBody = true
		fctx.Response.Header.SetContentLength(int(resp.length))
	case resp.list != nil:
		fctx.SetBodyStream(listStream{resp}, int(resp.length))
	case resp.reader != nil:
		// A client that waits for a watch to begin has to see that it has, even
		// if nothing happens.
		fctx.Response.ImmediateHeaderFlush = resp.length < 0
		if resp.lasts {
			fctx.Conn().(*conn).stall = 0 // who reads a log may stop to read it
		}
		fctx.SetBodyStream(s.passed(s.ctx, req, resp), int(resp.length))
	default:
		fctx.Response.SetBodyRaw(resp.bytes)
	}
}

// hijack takes the connection from fasthttp until f returns. If the connection
// breaks before that, abandon is called instead.
//
// f runs in a goroutine of its own, so that fasthttp's request and its read
// buffer, which is as large as the largest header, are let go of: a watch that
// does not ask for buffered costs its connection and no more.
func (s *Server) hijack(fctx *fasthttp.RequestCtx, abandon func(), f func(c *conn, buffered net.Conn)) {
	c := fctx.Conn().(*conn)
	s.streams.Add(1)
	c.abandoned = func() {
		abandon()
		s.streams.Done()
	}
	fctx.HijackSetNoResponse(true)
	fctx.Hijack(func(buffered net.Conn) {
		c.abandoned = nil
		go s.own(c, func() { f(c, buffered) })
	})
}

// own runs a stream to its end and closes its connection. Serve waits for it.
func (s *Server) own(c *conn, stream func()) {
	defer s.streams.Done()
	defer c.Close() //nolint:errcheck // nothing more is written
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a stream", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
	}()
	stream()
}

// copyUnframed writes a response of unknown length as HTTP/1.0 does.
func copyUnframed(c *conn, resp *response) {
	defer resp.reader.Close() //nolint:errcheck // it was read to its end, or nobody wants it
	resp.header.Set("Connection", "close")
	if _, err := c.Write(head(resp)); err == nil {
		_, _ = io.Copy(c, resp.reader) // either side may be gone
	}
}

// writeUnframed is copyUnframed of a list.
func writeUnframed(c *conn, resp *response) {
	defer resp.closeList()
	resp.header.Set("Connection", "close")
	if _, err := c.Write(head(resp)); err == nil {
		_, _ = resp.writeList(c) // the client may be gone
	}
}

// runStream writes an endless response, in chunks unless the client is too old
// for them. The connection ends with it, as what came behind the request was not
// kept.
func (s *Server) runStream(c *conn, rt route, resp *response, old bool) {
	open := s.metrics.watchOpened(rt)
	defer open.Dec()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	c.stall = s.options.Load().Stall
	if !beginStream(c, resp, old) {
		cancel()
	}
	out := &chunkWriter{w: c, unframed: old}
	if resp.watch != nil && s.pump.takes(resp.watch, c) {
		resp.watch.runBy(ctx, cancel, &s.pump, c, out)
	} else {
		stop := c.drainUntilGone(cancel)
		resp.run(ctx, out)
		stop()
	}
	_ = out.end() // the client may be gone
}

// beginStream writes the head of an endless response.
func beginStream(c *conn, resp *response, old bool) bool {
	resp.header.Set("Connection", "close")
	if !old {
		resp.header.Set("Transfer-Encoding", "chunked")
	}
	_, err := c.Write(head(resp))
	return err == nil
}

// head is the status line and header of a response that we write ourselves.
func head(resp *response) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", resp.status, http.StatusText(resp.status))
	resp.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	w := bufio.NewWriter(&b)
	_ = resp.header.Write(w) // to memory
	_ = w.Flush()
	b.WriteString("\r\n")
	return b.Bytes()
}

// listStream is a list as fasthttp writes it.
type listStream struct{ *response }

// Read implements io.Reader.
func (listStream) Read([]byte) (int, error) { panic("BUG: a list is written, not read") }

// WriteTo implements io.WriterTo.
func (l listStream) WriteTo(w io.Writer) (int64, error) { return l.writeList(w) }

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (listStream) SupportsBodyWriteTo() bool { return true }

// Close implements io.Closer.
func (l listStream) Close() error {
	l.closeList()
	return nil
}
