package h2

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

func contentLength(h http.Header) int64 {
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		return n
	}
	return -1
}

// handle answers a request.
func (c *Conn) handle(s *stream, req *exchange.Request) {
	pumped := false
	defer func() {
		if p := recover(); p != nil {
			c.server.Log.Error("panic in a stream", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			c.reset(s.id, http2.ErrCodeInternal)
		}
		if !pumped {
			s.close()
		}
	}()
	if req == nil {
		s.stall = c.server.Options().Limits.Write
		c.mu.Lock()
		c.mu.handlers--
		c.mu.Unlock()
		c.small(s, exchange.StatusResponse(exchange.Failure(http.StatusRequestHeaderFieldsTooLarge, "", "the header of the request is too long"), exchange.FromProxy), false)
		return
	}
	began := time.Now()
	rt := exchange.ParseRoute(req.Method, req.Path)
	if rand.Float64() < c.server.Options().GoawayChance {
		c.drain()
	}
	resp := c.server.Handler.Handle(s.ctx, req, &rt)
	c.server.Handler.Answered(req, rt, resp, time.Since(began))
	c.mu.Lock()
	c.mu.handlers--
	c.mu.Unlock()
	s.stall = c.server.Options().Limits.Write
	if resp.Close {
		c.drain()
	}
	head := req.Method == http.MethodHead
	switch {
	case resp.Stream != nil:
		pumped = c.stream(s, rt, resp)
	case resp.Tunnel != nil:
		resp.Tunnel.Abandon() // HTTP/2 has no upgrade
		c.reset(s.id, http2.ErrCodeInternal)
	case resp.List != nil:
		defer resp.CloseList()
		c.head(s, resp, resp.Length, head)
		if head {
			return
		}
		if _, err := resp.WriteList(s); err != nil {
			c.broken(s)
			return
		}
		c.finish(s)
	case resp.Reader != nil:
		defer resp.Reader.Close() //nolint:errcheck // it was read to its end, or nobody wants it
		if resp.Lasts {
			s.stall = 0
		}
		c.head(s, resp, resp.Length, head)
		if head {
			return
		}
		to := io.Writer(s)
		if !resp.Lasts {
			turns := fair.NewMeter(s.ctx, req, c.server.Slots, false)
			to = fair.InTurns(s, &turns)
		}
		if _, err := io.Copy(to, resp.Reader); err != nil {
			c.broken(s)
			return
		}
		c.finish(s)
	default:
		c.small(s, resp, head)
	}
}

// appendHeaderLocked appends the HEADERS of an answer.
func (c *Conn) appendHeaderLocked(s *stream, resp *exchange.Response, length int64, end bool) {
	s.headed = true
	block := &c.mu.block
	block.Reset()
	c.field(":status", strconv.Itoa(resp.Status))
	for name, values := range resp.Header {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			continue
		}
		for _, v := range values {
			c.field(lower(name), v)
		}
	}
	if length >= 0 && resp.Status != http.StatusNoContent && resp.Status != http.StatusNotModified && resp.Header.Get("Content-Length") == "" {
		c.field("content-length", strconv.FormatInt(length, 10))
	}
	if resp.Header.Get("Date") == "" {
		c.field("date", time.Now().UTC().Format(http.TimeFormat))
	}
	kind, rest := http2.FrameHeaders, block.Bytes()
	for {
		piece := rest[:min(len(rest), c.mu.frameMax)]
		rest = rest[len(piece):]
		var flags http2.Flags
		if len(rest) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		if end && kind == http2.FrameHeaders {
			flags |= http2.FlagHeadersEndStream
		}
		c.mu.buf = append(appendHead(c.bufLocked(), len(piece), kind, flags, s.id), piece...)
		if len(rest) == 0 {
			break
		}
		kind = http2.FrameContinuation
	}
	if end {
		c.endedLocked(s)
	}
}

// endedLocked tells the client of an answer that ended early that the rest of its request is not
// wanted.
func (c *Conn) endedLocked(s *stream) {
	if s.body != nil && !s.body.ended() {
		c.appendResetLocked(s.id, http2.ErrCodeNo)
	}
}

func (c *Conn) field(name, value string) {
	_ = c.mu.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) // to memory
}

var lowered = map[string]string{
	"Content-Type": "content-type", "Cache-Control": "cache-control", "Audit-Id": "audit-id", "Content-Encoding": "content-encoding", "Vary": "vary", "Warning": "warning",
	"Content-Length": "content-length", "Date": "date", "X-Kubernetes-Pf-Flowschema-Uid": "x-kubernetes-pf-flowschema-uid", "X-Kubernetes-Pf-Prioritylevel-Uid": "x-kubernetes-pf-prioritylevel-uid",
}

func lower(name string) string {
	if l, ok := lowered[name]; ok {
		return l
	}
	return strings.ToLower(name)
}

// head writes the header of an answer.
func (c *Conn) head(s *stream, resp *exchange.Response, length int64, end bool) {
	c.mu.Lock()
	if s.awaitLocked(false) == nil {
		c.appendHeaderLocked(s, resp, length, end)
	}
	c.mu.Unlock()
	if length < 0 || end {
		c.flush()
	}
}

// small writes a small answer. Those to unknown clients are counted until the client has taken them.
func (c *Conn) small(s *stream, resp *exchange.Response, head bool) {
	if !c.net.Known() {
		defer c.server.strangers.Add(-1)
		if c.server.strangers.Add(1) > strangersMax {
			c.server.Metrics.ConnectionRefused("strangers")
			c.reset(s.id, http2.ErrCodeEnhanceYourCalm)
			return
		}
		defer c.written()
	}
	c.whole(s, resp, head)
}

// strangersMax is how many answers wait for clients that nobody knows, on all connections.
const strangersMax = 1000

// Strangers is how many answers wait for unknown clients.
func (s *Server) Strangers() int64 { return s.strangers.Load() }

// goOn asks a client for the body that it announced.
func (c *Conn) goOn(s *stream) {
	c.mu.Lock()
	if s.err == nil && c.mu.err == nil && !s.headed {
		c.mu.block.Reset()
		c.field(":status", "100")
		block := c.mu.block.Bytes()
		c.mu.buf = append(appendHead(c.bufLocked(), len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, s.id), block...)
	}
	c.mu.Unlock()
	c.flush()
}

// whole writes a small answer in one go.
func (c *Conn) whole(s *stream, resp *exchange.Response, head bool) {
	p := resp.Bytes
	c.mu.Lock()
	if s.awaitLocked(false) == nil {
		bare := head || len(p) == 0
		c.appendHeaderLocked(s, resp, int64(len(p)), bare)
		if !bare {
			n := c.appendDataLocked(s, p, bufferMax)
			if p = p[n:]; len(p) == 0 {
				c.mu.buf = appendHead(c.mu.buf, 0, http2.FrameData, http2.FlagDataEndStream, s.id)
				c.endedLocked(s)
			}
		} else {
			p = nil
		}
	}
	c.mu.Unlock()
	if len(p) == 0 {
		c.flush()
		return
	}
	if _, err := s.Write(p); err != nil {
		c.broken(s)
		return
	}
	c.finish(s)
}

// finish ends an answer.
func (c *Conn) finish(s *stream) {
	c.mu.Lock()
	if s.err == nil && c.mu.err == nil {
		c.mu.buf = appendHead(c.bufLocked(), 0, http2.FrameData, http2.FlagDataEndStream, s.id)
		c.endedLocked(s)
	}
	c.mu.Unlock()
	c.flush()
}

// stream begins an endless body. It is true if a pump writes the rest.
func (c *Conn) stream(s *stream, rt exchange.Route, resp *exchange.Response) (pumped bool) {
	s.stall = c.server.Options().Stall
	c.head(s, resp, -1, false)
	open := c.server.Metrics.WatchOpened(rt)
	out := &exchange.ChunkWriter{To: s, Unframed: true}
	w, ok := resp.Stream.(*watch.Watch)
	if !ok || !w.Cheap() {
		defer open.Dec()
		resp.Stream.Run(s.ctx, out)
		c.finish(s)
		return false
	}
	if !w.Open(s.ctx, out) {
		w.Close()
		open.Dec()
		c.finish(s)
		return false
	}
	c.mu.Lock()
	s.pumped, s.out = w, out
	s.closed = open.Dec
	c.mu.Unlock()
	out.To = (*eager)(s)
	c.running.Add(1)
	w.Cursor.Notify(s.ready)
	s.ready() // for what has happened before
	return true
}

// broken resets a stream whose answer could not be written to its end, unless its client did.
func (c *Conn) broken(s *stream) {
	c.mu.Lock()
	_, byClient := errors.AsType[http2.StreamError](s.err)
	c.mu.Unlock()
	if !byClient {
		c.reset(s.id, http2.ErrCodeInternal)
	}
}
