package listen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// newHTTP1 returns a server for heads of up to head bytes. It never listens, so it logs nothing.
func (s *Server) newHTTP1(head int) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               s.serve,
		Concurrency:           1 << 20,
		ReadBufferSize:        head,
		ReadTimeout:           s.Limits().Read,
		StreamRequestBody:     true,
		KeepHijackedConns:     true,
		MaxRequestBodySize:    exchange.BodyAhead,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		SecureErrorLogMessage: true,

		DisablePreParseMultipartForm: true,
		ConnState: func(c net.Conn, state fasthttp.ConnState) {
			t := c.(*borrowed)
			switch state {
			case fasthttp.StateIdle:
				t.idle = true
				t.Resume()
			case fasthttp.StateActive:
				t.idle, t.handled, t.Stall = false, false, s.Limits().Write
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
		s.countRefused(err)
		_ = c.Close() // no response can be sent
	case protocol == http2.NextProtoTLS:
		s.serving.Go(func() { s.h2.Serve(c) })
	default:
		s.serving.Go(func() { s.serveRequests(&client{Conn: c}, true) })
	}
}

// serveRequests gives requests to fasthttp. An unknown client waits in a new goroutine each time.
func (s *Server) serveRequests(c *client, first bool) {
	for ; ; first = false {
		if err := c.await(first, s.Limits()); err != nil {
			s.countRefused(err)
			_ = c.Close() // all bytes have been written
			return
		}
		head := c.ahead[:c.head]
		lines := bytes.Count(head, []byte("\n"))
		server, t := s.http.short, &borrowed{
			client: c,
			buffer: shortHead,
			parsed: int64(lines) * lineSize,
		}
		switch {
		case bytes.IndexAny(head, "?\n") > pathMost:
			// The head is too long for this server, which says 431.
		case c.head == 0 || c.head > shortHead:
			server, t.buffer = s.http.long, int64(s.Limits().HeaderBytes)
		}
		if err := server.ServeConn(t); err != nil {
			s.countRefused(err)
			s.Log.Debug("connection broken", brokenBy(err))
		}
		if !t.returned { // a stream may already use the connection, or it is closed
			return
		}
		if !c.Account.Known() {
			s.serving.Go(func() { s.serveRequests(c, false) })
			return
		}
	}
}

func (s *Server) countRefused(err error) {
	if errors.Is(err, conn.ErrHeads) {
		s.Metrics.ConnectionRefused("heads")
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

func (s *Server) serve(fctx *fasthttp.RequestCtx) {
	c := fctx.Conn().(*borrowed)
	c.handled = true
	c.Account.HeadEnds()
	req := s.newRequest(fctx)
	resp := rejectMalformed(&fctx.Request.Header, req.Header)
	if endsConnection(req.Header) {
		fctx.SetConnectionClose() // fasthttp honors only a lower-case close without other values
	}
	if resp == nil {
		resp = s.Handler.Handle(s.Life.Serving(), req)
	} else {
		s.Handler.Refused(req, resp)
	}
	s.render(fctx, req, resp)
	if resp.Last || s.Life.Draining().Err() != nil {
		fctx.SetConnectionClose()
	}
	if req.Body != nil && !req.Body.Ended.Load() {
		fctx.SetConnectionClose()
		c.InputLeft = true
	}
}

func (s *Server) newRequest(fctx *fasthttp.RequestCtx) *exchange.Request {
	h := &fctx.Request.Header
	c := fctx.Conn().(*borrowed)
	req := &exchange.Request{
		Method: string(h.Method()),
		Target: string(h.RequestURI()),
		Host:   string(h.Host()),
		Header: make(http.Header, 16),
		Client: c.client,
		Conn:   c.Conn,
		TLS:    c.TLSState,
	}
	req.SplitTarget()
	if c.buffer > shortHead {
		req.Buffered = c.buffer
	}
	// AllInOrder keeps the order. All would join, drop or reorder some headers.
	for name, value := range h.AllInOrder() {
		name := http.CanonicalHeaderKey(string(name))
		req.Header[name] = append(req.Header[name], string(value))
	}
	ignoreUpgrade(req.Header)
	// Fasthttp's -1 means chunked, and -2 means no body.
	if length := int64(h.ContentLength()); length > 0 || length == -1 {
		req.Body = &exchange.Body{
			From: &requestBody{
				from:    fctx.RequestBodyStream(),
				client:  c.client,
				chunked: length < 0,
			},
			Client: c,
			Pause:  s.Limits().Read,
			Length: length,
		}
	} else {
		c.ReadUntil(time.Time{}) // fasthttp set the deadline for the headers
	}
	return req
}

// render passes a response to fasthttp. A small response then already counts as written, because it
// is written without waiting.
func (s *Server) render(fctx *fasthttp.RequestCtx, req *exchange.Request, resp *exchange.Response) {
	// HTTP/1.0 has no chunks, so the end of the connection ends the body.
	old := !fctx.Request.Header.IsHTTP11()
	var run takeover
	unchunked := false
	switch body := resp.Body.(type) {
	case exchange.Stream:
		last := old || endsConnection(req.Header) || req.Body != nil ||
			s.Life.Draining().Err() != nil
		run = func(c *client) (int64, bool) {
			return s.runStream(c, req.Route, resp, old, last || len(c.ahead) > 0)
		}
	case exchange.Tunnel:
		run = func(c *client) (int64, bool) { return runTunnel(c, resp) }
	case *fair.List:
		unchunked = old && body.Length < 0
	case *exchange.Reader:
		// A hijack drops the request's body, which upstream's transport must not read then.
		read := req.Body == nil || req.Body.From.(*requestBody).atEnd.Load()
		unchunked = old && body.Length < 0 && read
	}
	if unchunked {
		run = func(c *client) (int64, bool) { return s.writeUnchunked(c, req, resp), false }
	}
	if run != nil {
		s.hijack(fctx, resp, run)
		return
	}
	fctx.SetStatusCode(resp.Status)
	for name, values := range resp.Header {
		for _, v := range values {
			fctx.Response.Header.Add(name, v)
		}
	}
	switch body := resp.Body.(type) {
	case *fair.List:
		fctx.SetBodyStream(&bodyStream{
			server: s,
			req:    req,
			resp:   resp,
		}, int(body.Length))
	case *exchange.Reader:
		if req.Method == http.MethodHead {
			resp.Close(0) // fasthttp would write the end of a body
			fctx.Response.SkipBody = true
			fctx.Response.Header.SetContentLength(int(body.Length))
			return
		}
		// The head of a forwarded response must be written at once: no event may follow, and a
		// client whose connection ends without a head may send the request again.
		fctx.Response.ImmediateHeaderFlush = true
		if resp.Lasts {
			fctx.Conn().(*borrowed).Stall = body.Stall
		}
		fctx.SetBodyStream(&bodyStream{
			server: s,
			req:    req,
			resp:   resp,
			pieces: true,
		}, int(body.Length))
	default:
		fctx.Response.SetBodyRaw(resp.Bytes())
		resp.Close(int64(len(resp.Bytes())))
	}
}

// takeover writes a response to a connection that fasthttp has given away. It reports whether the
// connection can serve another request.
type takeover func(c *client) (bytes int64, reusable bool)

// hijack takes the connection from fasthttp until run returns. If it breaks before run begins, the
// response is abandoned instead. run has a new goroutine, which frees fasthttp's request and read
// buffer. Bytes of the next request in that buffer are kept as read ahead.
func (s *Server) hijack(fctx *fasthttp.RequestCtx, resp *exchange.Response, run takeover) {
	t := fctx.Conn().(*borrowed)
	s.serving.Add(1)
	t.hijacked = &hijacked{resp: resp, running: &s.serving}
	fctx.HijackSetNoResponse(true)
	fctx.Hijack(func(buffered net.Conn) {
		if rest, _ := io.ReadAll(buffered); len(rest) > 0 { // from memory
			t.ahead = append(rest, t.ahead...)
		}
		go s.runHijacked(t.client, resp, run)
	})
}

// runHijacked writes a response, and then closes or serves the connection. Serve waits for it.
func (s *Server) runHijacked(c *client, resp *exchange.Response, run takeover) {
	bytes, reusable := int64(0), false
	defer func() {
		if p := recover(); p != nil {
			s.Metrics.Panicked(s.Log, metrics.InStream, p)
		}
		resp.Close(bytes)
		if reusable {
			s.serving.Go(func() { s.serveRequests(c, false) })
		} else {
			_ = c.Close() // nothing more is written
		}
		s.serving.Done()
	}()
	bytes, reusable = run(c)
}

func runTunnel(c *client, resp *exchange.Response) (bytes int64, reusable bool) {
	c.Stall = 0
	c.Account.HeadEnds()       // the tunnel uses the connection in two goroutines
	_, _ = c.Write(head(resp)) // the tunnel detects a client that has left
	resp.Body.(exchange.Tunnel).Join(c)
	return 0, false
}

// writeUnchunked writes a response of unknown length without chunks, for HTTP/1.0.
func (s *Server) writeUnchunked(
	c *client, req *exchange.Request, resp *exchange.Response,
) (bytes int64) {
	defer func() { resp.Close(bytes) }()
	if from, ok := resp.Body.(*exchange.Reader); ok && resp.Lasts {
		c.Stall = from.Stall
	}
	if writeHead(c, resp, true) == nil {
		bytes, _ = s.writeLong(c, req, resp) // client or upstream may be gone
	}
	return bytes
}

func (s *Server) writeLong(
	w io.Writer, req *exchange.Request, resp *exchange.Response,
) (int64, error) {
	if list, ok := resp.Body.(*fair.List); ok {
		return list.Write(w, req.Memory.Try(fair.LargeBuffer))
	}
	return resp.Copy(s.Life.Serving(), w, req, s.Slots)
}

// runStream writes an endless response, in chunks unless the client uses HTTP/1.0. It reports
// whether another response may follow. If last is true, the response says that none follows.
func (s *Server) runStream(
	c *client, rt exchange.Route, resp *exchange.Response, old, last bool,
) (bytes int64, whole bool) {
	body := resp.Body.(exchange.Stream)
	open := s.Metrics.WatchOpened(rt)
	defer func() { open.Ended(body.Reason()) }()
	ctx, cancel := context.WithCancel(s.Life.Serving())
	defer cancel()
	c.Stall = s.Limits().Stall
	const most = 2 * exchange.PieceSize
	c.Guard = fair.NewGuard(most, conn.Unread{Conn: c.Conn})
	defer func() { c.Guard = nil }()
	if !old {
		resp.Header.Set("Transfer-Encoding", "chunked")
	}
	if writeHead(c, resp, last) != nil {
		cancel()
	}
	out := &exchange.ChunkWriter{
		To:        c,
		Unchunked: old,
		Guard:     c.Guard,
	}
	func() {
		defer c.CancelWhenGone(cancel)()
		body.Run(ctx, out)
	}()
	err := out.End() // the client may be gone
	return int64(out.Sent), !last && errors.Join(err, c.err) == nil
}

// writeHead writes the head of a response that fasthttp does not write. If last is true, the
// connection ends with the response.
func writeHead(c *client, resp *exchange.Response, last bool) error {
	if last {
		resp.Header.Set("Connection", "close")
	}
	_, err := c.Write(head(resp))
	return err
}

func head(resp *exchange.Response) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", resp.Status, http.StatusText(resp.Status))
	resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	_ = resp.Header.Write(&b) // to memory
	b.WriteString("\r\n")
	return b.Bytes()
}
