package listen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// newHTTP1 returns a server for requests with heads of up to head bytes. It never listens, so it logs
// nothing.
func (s *Server) newHTTP1(head int) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               s.serve,
		Concurrency:           1 << 20,
		ReadBufferSize:        head,
		ReadTimeout:           s.Options().Limits.Read,
		StreamRequestBody:     true,
		KeepHijackedConns:     true,
		MaxRequestBodySize:    exchange.BodyAhead,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		SecureErrorLogMessage: true,

		DisablePreParseMultipartForm: true,
		ConnState: func(c net.Conn, state fasthttp.ConnState) {
			switch state {
			case fasthttp.StateIdle:
				c.(*conn.Conn).Rest()
			case fasthttp.StateActive:
				c.(*conn.Conn).Idle = false
			default:
			}
		},
	}
}

// serveConn serves a connection until it ends or becomes a stream. It waits in new goroutines,
// because the stack of a busy goroutine stays large.
func (s *Server) serveConn(c *conn.Conn) {
	switch protocol, err := c.Handshake(); {
	case err != nil:
		if errors.Is(err, conn.ErrHeads) {
			s.Metrics.ConnectionRefused("heads")
		}
		_ = c.Close() // no response can be sent
	case protocol == http2.NextProtoTLS:
		s.serving.Go(func() { s.h2.Serve(c) })
	default:
		s.serving.Go(func() { s.serveRequests(c, true) })
	}
}

// serveRequests waits for a request. It serves this request and the requests that follow soon.
func (s *Server) serveRequests(c *conn.Conn, first bool) {
	ok, refused := c.Await(first, s.Options().Limits)
	if refused {
		s.Metrics.ConnectionRefused("heads")
	}
	if !ok {
		_ = c.Close() // all bytes have been written
		return
	}
	server := s.http.short
	if c.LongHead = c.HeadLength == 0 || c.HeadLength > shortHead; c.LongHead {
		server = s.http.long
	}
	handedBack := false
	c.HandedBack = &handedBack
	if err := server.ServeConn(c); err != nil {
		s.Log.Debug("connection broken", brokenBy(err))
	}
	if handedBack { // otherwise a stream may already use the connection, or it is closed
		s.serving.Go(func() { s.serveRequests(c, false) })
	}
}

// brokenBy describes why a connection broke. fasthttp's own errors quote the request's head, which
// may contain a token.
func brokenBy(err error) zap.Field {
	if broken, ok := errors.AsType[net.Error](err); ok {
		return zap.Error(broken)
	}
	return zap.String("error", "malformed or incomplete request")
}

// serve receives each request from fasthttp.
func (s *Server) serve(fctx *fasthttp.RequestCtx) {
	began := time.Now()
	c := fctx.Conn().(*conn.Conn)
	c.Stall = s.Options().Limits.Write
	req := s.newRequest(fctx)
	resp := rejectMalformed(&fctx.Request.Header, req.Header)
	rt := exchange.ParseRoute(req.Method, req.Path)
	if req.EndsConnection() {
		fctx.SetConnectionClose() // fasthttp honors only a lower-case close without other values
	}
	if resp == nil {
		resp = s.Handler.Handle(s.Serving, req, &rt)
	}
	s.render(fctx, req, rt, resp, s.Handler.Answered(req, rt, resp, time.Since(began)))
	if resp.Close || s.Draining.Err() != nil {
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
	if c.LongHead {
		req.Buffered = int64(s.Options().Limits.HeaderBytes)
	}
	// AllInOrder keeps the order. All would join, drop or reorder some headers.
	for name, value := range h.AllInOrder() {
		name := http.CanonicalHeaderKey(string(name))
		req.Header[name] = append(req.Header[name], string(value))
	}
	req.IgnoreUpgrade()
	// Fasthttp's -1 means chunked, and -2 means no body.
	if length := int64(h.ContentLength()); length > 0 || length == -1 {
		req.Body = &exchange.Body{From: fctx.RequestBodyStream(), Cut: &c.Ended, Length: length}
		req.Body.Extend = func() { c.ReadUntil(req.Body.Deadline(s.Options().Limits.Read)) }
	} else {
		c.ReadUntil(time.Time{}) // fasthttp set the deadline for the headers
	}
	return req
}

// render passes a response to fasthttp. A small response then already counts as written, because it
// is written without waiting.
func (s *Server) render(fctx *fasthttp.RequestCtx, req *exchange.Request, rt exchange.Route, resp *exchange.Response, written func(int64)) {
	// HTTP/1.0 has no chunks, so the end of the connection ends the body.
	old := !fctx.Request.Header.IsHTTP11()
	switch {
	case resp.Stream != nil:
		last := old || req.EndsConnection() || s.Draining.Err() != nil
		s.hijack(fctx, func() { resp.Stream.Abandon(); written(0) }, func(c *conn.Conn, _ net.Conn) (reusable bool) {
			sent, reusable := s.runStream(c, rt, resp, old, last || c.Pipelines())
			written(sent)
			return reusable
		})
		return
	// A hijack drops the request's body, which upstream's transport must not read then.
	case old && resp.Length < 0 && (resp.List != nil || resp.Reader != nil && (req.Body == nil || req.Body.AtEnd.Load())):
		s.hijack(fctx, func() { resp.CloseBody(); written(0) }, func(c *conn.Conn, _ net.Conn) (reusable bool) {
			var bytes int64
			defer func() { written(bytes) }() // also after a panic
			bytes = s.writeUnframed(c, req, resp)
			return false
		})
		return
	case resp.Tunnel != nil:
		s.hijack(fctx, func() { resp.Tunnel.Abandon(); written(0) }, func(c *conn.Conn, buffered net.Conn) (reusable bool) {
			defer written(0)
			c.Stall = 0
			c.HeadEnds()               // the tunnel uses the connection in two goroutines
			_, _ = c.Write(head(resp)) // the tunnel detects a client that has left
			resp.Tunnel.Join(c, buffered)
			return false
		})
		return
	}
	fctx.SetStatusCode(resp.Status)
	for name, values := range resp.Header {
		for _, v := range values {
			fctx.Response.Header.Add(name, v)
		}
	}
	switch {
	case resp.Reader != nil && req.Method == http.MethodHead:
		resp.CloseBody() // fasthttp would write the end of a body
		fctx.Response.SkipBody = true
		fctx.Response.Header.SetContentLength(int(resp.Length))
		written(0)
	case resp.List != nil, resp.Reader != nil:
		// The head of a forwarded response must be written at once: no event may follow, and a client
		// whose connection ends without a head may send the request again.
		fctx.Response.ImmediateHeaderFlush = resp.Reader != nil
		if resp.Streaming {
			fctx.Conn().(*conn.Conn).Stall = resp.Stall
		}
		fctx.SetBodyStream(&bodyStream{server: s, req: req, resp: resp, written: written}, int(resp.Length))
	default:
		fctx.Response.SetBodyRaw(resp.Bytes)
		written(int64(len(resp.Bytes)))
	}
}

// hijack takes the connection from fasthttp until f returns. If f returns true, the connection then
// serves its next request. If the connection breaks before f begins, hijack calls abandon instead.
//
// f runs in a new goroutine. This frees fasthttp's request and its read buffer, which has the size
// of the largest header. A watch then costs only its connection, unless f needs buffered.
func (s *Server) hijack(fctx *fasthttp.RequestCtx, abandon func(), f func(c *conn.Conn, buffered net.Conn) (reusable bool)) {
	c := fctx.Conn().(*conn.Conn)
	s.serving.Add(1)
	c.Abandoned = func() {
		abandon()
		s.serving.Done()
	}
	fctx.HijackSetNoResponse(true)
	fctx.Hijack(func(buffered net.Conn) {
		c.Abandoned = nil
		go s.runHijacked(c, func() bool { return f(c, buffered) })
	})
}

// runHijacked runs a stream to its end. Serve waits for it. Then it closes the connection, or serves
// its next request in a new goroutine, because the stack of this one may be large.
func (s *Server) runHijacked(c *conn.Conn, stream func() (reusable bool)) {
	reusable := false
	defer func() {
		if p := recover(); p != nil {
			s.Metrics.Panicked(s.Log, metrics.InStream, p)
		}
		if reusable {
			s.serving.Go(func() { s.serveRequests(c, false) })
		} else {
			_ = c.Close() // nothing more is written
		}
		s.serving.Done()
	}()
	reusable = stream() && c.Reusable()
}

// writeUnframed writes a response of unknown length without chunks, for HTTP/1.0.
func (s *Server) writeUnframed(c *conn.Conn, req *exchange.Request, resp *exchange.Response) (bytes int64) {
	defer resp.CloseBody()
	if resp.Streaming {
		c.Stall = resp.Stall
	}
	if writeHead(c, resp, true) == nil {
		bytes, _ = resp.WriteBody(s.Serving, c, req, s.Slots) // client or upstream may be gone
	}
	return bytes
}

// runStream writes an endless response, in chunks unless the client uses HTTP/1.0. It reports whether
// another response may follow. If last is true, the response says that none follows.
func (s *Server) runStream(c *conn.Conn, rt exchange.Route, resp *exchange.Response, old, last bool) (bytes int64, whole bool) {
	ended := s.Metrics.WatchOpened(rt)
	defer func() { ended(resp.Stream.Reason()) }()
	ctx, cancel := context.WithCancel(s.Serving)
	defer cancel()
	c.Stall = s.Options().Stall
	c.Guard = s.Room.Guard(2*exchange.PieceSize, c.User, func() { c.LimitWrites(time.Now()) })
	defer func() { c.Guard = nil }()
	if !old {
		resp.Header.Set("Transfer-Encoding", "chunked")
	}
	if writeHead(c, resp, last) != nil {
		cancel()
	}
	out := &exchange.ChunkWriter{To: c, Unframed: old, Large: c.Guard.Large}
	if w, ok := resp.Stream.(*watch.Watch); ok && c.Pumpable() && w.Cheap() {
		s.pump.serve(ctx, cancel, c, w, out)
	} else {
		stop := c.WatchInput(cancel)
		resp.Stream.Run(ctx, out)
		stop()
	}
	err := out.End() // the client may be gone
	return int64(out.Sent), !last && err == nil && resp.Stream.Reason() != watch.EndPanic
}

// writeHead writes the head of a response that fasthttp does not write. If last is true, the
// connection ends with the response.
func writeHead(c *conn.Conn, resp *exchange.Response, last bool) error {
	if last {
		resp.Header.Set("Connection", "close")
	}
	_, err := c.Write(head(resp))
	return err
}

// head returns the status line and header of a response that fasthttp does not write.
func head(resp *exchange.Response) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", resp.Status, http.StatusText(resp.Status))
	resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	_ = resp.Header.Write(&b) // to memory
	b.WriteString("\r\n")
	return b.Bytes()
}
