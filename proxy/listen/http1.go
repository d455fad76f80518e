package listen

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

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// newHTTP1 makes a server for requests with heads of up to so many bytes. It never listens.
func (s *Server) newHTTP1(head int) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               s.serve,
		Concurrency:           1 << 20,
		ReadBufferSize:        head,
		ReadTimeout:           s.options().Limits.Read,
		StreamRequestBody:     true,
		KeepHijackedConns:     true,
		MaxRequestBodySize:    exchange.BodyAhead,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		SecureErrorLogMessage: true,

		DisablePreParseMultipartForm: true,
		Logger:                       quiet{s.log},
		ConnState: func(c net.Conn, state fasthttp.ConnState) {
			if state == fasthttp.StateIdle || state == fasthttp.StateActive {
				c.(*conn.Conn).SetIdle(state == fasthttp.StateIdle)
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
func (s *Server) serveConn(c *conn.Conn) {
	switch protocol, err := c.Handshake(); {
	case err != nil:
		_ = c.Close() // there is nobody to tell
	case protocol == http2.NextProtoTLS:
		s.serving.Go(func() { s.serveHTTP2Conn(c) })
	default:
		s.serving.Go(func() { s.serveRequests(c, true) })
	}
}

// serveRequests waits for a request and serves those that come in a row.
func (s *Server) serveRequests(c *conn.Conn, first bool) {
	if !s.await(c, first) {
		_ = c.Close() // nothing more is written
		return
	}
	server := s.http.short
	if c.HeadLength() == 0 || c.HeadLength() > shortHead {
		server = s.http.long
	}
	if err := server.ServeConn(c); err != nil {
		s.log.Debug("connection broken", zap.Error(err)) // daily bread
	}
	if c.GoesOn() {
		s.serving.Go(func() { s.serveRequests(c, false) })
	}
}

// await waits for a request, or for the end of a connection.
func (s *Server) await(c *conn.Conn, first bool) bool {
	ok, refused := c.Await(first, s.options().Limits, &s.heads)
	if refused {
		s.metrics.ConnectionRefused("heads")
	}
	return ok
}

// serve is where a request enters from fasthttp.
func (s *Server) serve(fctx *fasthttp.RequestCtx) {
	began := time.Now()
	c := fctx.Conn().(*conn.Conn)
	c.Stall = s.options().Limits.Write
	req := s.newRequest(fctx)
	resp := misread(&fctx.Request.Header, req.Header)
	rt := exchange.ParseRoute(req.Method, req.Path)
	if req.EndsConnection() {
		fctx.SetConnectionClose() // fasthttp heeds only a lone lower-case close
	}
	if resp == nil {
		resp = s.handler.Handle(s.ctx, req, &rt)
	}
	s.handler.Answered(req, rt, resp, time.Since(began))
	s.render(fctx, req, rt, resp)
	if resp.Close || s.draining.Err() != nil {
		fctx.SetConnectionClose()
	}
	if req.Body != nil && !req.Body.Ended.Load() {
		fctx.SetConnectionClose()
		c.Unread = true
	}
}

func (s *Server) newRequest(fctx *fasthttp.RequestCtx) *exchange.Request {
	h := &fctx.Request.Header
	c := fctx.Conn().(*conn.Conn)
	req := &exchange.Request{
		Method: string(h.Method()),
		Target: string(h.RequestURI()),
		Host:   string(h.Host()),
		Header: make(http.Header, 16),
		Client: c,
		Conn:   c,
		TLS:    c.TLSState,
	}
	req.SplitTarget()
	// As they came: All would join, drop or reorder some of them.
	for name, value := range h.AllInOrder() {
		name := http.CanonicalHeaderKey(string(name))
		req.Header[name] = append(req.Header[name], string(value))
	}
	if length := int64(h.ContentLength()); length > 0 || length == -1 { // fasthttp: -1 chunked, -2 none
		req.Body = &exchange.Body{From: fctx.RequestBodyStream(), Cut: c.Ended(), Length: length}
		req.Body.Extend = func() { c.ReadUntil(req.Body.Deadline(s.options().Limits.Read)) }
	} else {
		c.Unlimited() // fasthttp's deadline was for the headers
	}
	return req
}

// render hands a response to fasthttp.
func (s *Server) render(fctx *fasthttp.RequestCtx, req *exchange.Request, rt exchange.Route, resp *exchange.Response) {
	old := !fctx.Request.Header.IsHTTP11() // HTTP/1.0 has no chunks: the end of the connection ends the body
	switch {
	case resp.Stream != nil:
		s.hijack(fctx, resp.Stream.Abandon, func(c *conn.Conn, _ net.Conn) { s.runStream(c, rt, resp, old) })
		return
	case resp.List != nil && resp.Length < 0 && old:
		s.hijack(fctx, resp.CloseList, func(c *conn.Conn, _ net.Conn) { writeUnframed(c, resp) })
		return
	case resp.Reader != nil && resp.Length < 0 && old && req.Body == nil: // a hijack lets go of the body
		s.hijack(fctx, func() { _ = resp.Reader.Close() }, func(c *conn.Conn, _ net.Conn) {
			if resp.Lasts {
				c.Stall = 0
			}
			copyUnframed(c, resp)
		})
		return
	case resp.Tunnel != nil:
		s.hijack(fctx, resp.Tunnel.Abandon, func(c *conn.Conn, buffered net.Conn) {
			c.Stall = 0
			_, _ = c.Write(head(resp)) // if the client is gone, the tunnel finds out
			resp.Tunnel.Join(c, buffered)
		})
		return
	}
	fctx.SetStatusCode(resp.Status)
	for name, values := range resp.Header {
		for i, v := range values {
			if i == 0 {
				fctx.Response.Header.Set(name, v)
			} else {
				fctx.Response.Header.Add(name, v)
			}
		}
	}
	switch {
	case resp.Reader != nil && req.Method == http.MethodHead:
		// fasthttp would end a body that there is none of.
		_ = resp.Reader.Close()
		fctx.Response.SkipBody = true
		fctx.Response.Header.SetContentLength(int(resp.Length))
	case resp.List != nil:
		fctx.SetBodyStream(listStream{resp}, int(resp.Length))
	case resp.Reader != nil:
		// A client that waits for a watch to begin has to see that it has, even
		// if nothing happens.
		fctx.Response.ImmediateHeaderFlush = resp.Length < 0
		if resp.Lasts {
			fctx.Conn().(*conn.Conn).Stall = 0 // who reads a log may stop to read it
		}
		fctx.SetBodyStream(s.passed(s.ctx, req, resp), int(resp.Length))
	default:
		fctx.Response.SetBodyRaw(resp.Bytes)
	}
}

// hijack takes the connection from fasthttp until f returns. If the connection
// breaks before that, abandon is called instead.
//
// f runs in a goroutine of its own, so that fasthttp's request and its read
// buffer, which is as large as the largest header, are let go of: a watch that
// does not ask for buffered costs its connection and no more.
func (s *Server) hijack(fctx *fasthttp.RequestCtx, abandon func(), f func(c *conn.Conn, buffered net.Conn)) {
	c := fctx.Conn().(*conn.Conn)
	s.streams.Add(1)
	c.Abandoned = func() {
		abandon()
		s.streams.Done()
	}
	fctx.HijackSetNoResponse(true)
	fctx.Hijack(func(buffered net.Conn) {
		c.Abandoned = nil
		go s.own(c, func() { f(c, buffered) })
	})
}

// own runs a stream to its end and closes its connection. Serve waits for it.
func (s *Server) own(c *conn.Conn, stream func()) {
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
func copyUnframed(c *conn.Conn, resp *exchange.Response) {
	defer resp.Reader.Close() //nolint:errcheck // it was read to its end, or nobody wants it
	resp.Header.Set("Connection", "close")
	if _, err := c.Write(head(resp)); err == nil {
		_, _ = io.Copy(c, resp.Reader) // either side may be gone
	}
}

// writeUnframed is copyUnframed of a list.
func writeUnframed(c *conn.Conn, resp *exchange.Response) {
	defer resp.CloseList()
	resp.Header.Set("Connection", "close")
	if _, err := c.Write(head(resp)); err == nil {
		_, _ = resp.WriteList(c) // the client may be gone
	}
}

// runStream writes an endless response, in chunks unless the client is too old
// for them. The connection ends with it, as what came behind the request was not
// kept.
func (s *Server) runStream(c *conn.Conn, rt exchange.Route, resp *exchange.Response, old bool) {
	open := s.metrics.WatchOpened(rt)
	defer open.Dec()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	c.Stall = s.options().Stall
	if !beginStream(c, resp, old) {
		cancel()
	}
	out := &exchange.ChunkWriter{To: c, Unframed: old}
	if w, ok := resp.Stream.(*watch.Watch); ok && s.pump.takes(w, c) {
		s.pump.serve(ctx, cancel, c, w, out)
	} else {
		stop := c.DrainUntilGone(cancel)
		resp.Stream.Run(ctx, out)
		stop()
	}
	_ = out.End() // the client may be gone
}

// beginStream writes the head of an endless response.
func beginStream(c *conn.Conn, resp *exchange.Response, old bool) bool {
	resp.Header.Set("Connection", "close")
	if !old {
		resp.Header.Set("Transfer-Encoding", "chunked")
	}
	_, err := c.Write(head(resp))
	return err == nil
}

// head is the status line and header of a response that we write ourselves.
func head(resp *exchange.Response) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", resp.Status, http.StatusText(resp.Status))
	resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	w := bufio.NewWriter(&b)
	_ = resp.Header.Write(w) // to memory
	_ = w.Flush()
	b.WriteString("\r\n")
	return b.Bytes()
}

// listStream is a list as fasthttp writes it.
type listStream struct{ *exchange.Response }

// Read implements io.Reader.
func (listStream) Read([]byte) (int, error) { panic("BUG: a list is written, not read") }

// WriteTo implements io.WriterTo.
func (l listStream) WriteTo(w io.Writer) (int64, error) { return l.WriteList(w) }

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (listStream) SupportsBodyWriteTo() bool { return true }

// Close implements io.Closer.
func (l listStream) Close() error {
	l.CloseList()
	return nil
}
