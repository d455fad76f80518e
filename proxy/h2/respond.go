package h2

import (
	"errors"
	"math/rand/v2"
	"net/http"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// handle answers a request.
func (c *Conn) handle(s *stream, req *exchange.Request) {
	var resp *exchange.Response
	pumped, bytes := false, int64(0)
	defer func() {
		if !pumped && resp != nil {
			resp.Close(bytes)
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			c.server.Metrics.Panicked(c.server.Log, metrics.InStream, p)
			c.reset(s.id, http2.ErrCodeInternal)
		}
		if !pumped {
			s.close()
		}
	}()
	if req == nil {
		c.small(s, exchange.StatusResponse(exchange.Failure(http.StatusRequestHeaderFieldsTooLarge, "", "the header of the request is too long"), exchange.FromProxy), false)
		return
	}
	req.Client = s
	rt := exchange.ParseRoute(req.Method, req.Path)
	if rand.Float64() < c.server.Options().GoawayChance {
		c.drain()
	}
	resp = c.server.Handler.Handle(&s.ctx, req, &rt)
	head := req.Method == http.MethodHead || resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified
	switch {
	case resp.Stream != nil:
		pumped, bytes = c.stream(s, rt, resp)
	case resp.Tunnel != nil:
		resp.Tunnel.Abandon() // HTTP/2 has no upgrade
		c.reset(s.id, http2.ErrCodeInternal)
	case resp.List != nil, resp.Reader != nil:
		defer func() { resp.Close(bytes) }() // before the stream ends
		s.more = resp.List != nil
		if resp.Streaming {
			s.stall = resp.Stall
		}
		c.head(s, resp, resp.Length, head)
		if head {
			return
		}
		var err error
		if bytes, err = resp.WriteBody(&s.ctx, s, req, c.server.Slots); err != nil {
			c.broken(s)
			return
		}
		c.finish(s)
	default:
		if !head {
			bytes = int64(len(resp.Bytes))
		}
		if req.Memory == nil { // refused before it counted, so only the response may wait for the client
			resp.Close(bytes) // no longer refers to the request
			s.Interrupt()
		}
		c.small(s, resp, head)
	}
}

// appendHeaderLocked appends the HEADERS of a response.
func (c *Conn) appendHeaderLocked(s *stream, resp *exchange.Response, length int64, end bool) {
	s.headed = true
	c.mu.encoder.answer(resp, length)
	c.mu.buf = c.mu.encoder.appendBlock(c.bufLocked(), s.id, end, c.mu.frameMax)
	if end {
		c.endedLocked(s)
	}
}

// endedLocked must be called after the end of a response was appended. If the request has not ended,
// RST_STREAM makes the client stop sending, as with kube-apiserver.
func (c *Conn) endedLocked(s *stream) {
	s.done = true
	c.mu.done++
	if s.body != nil && !s.body.Ended() {
		c.mu.buf = appendReset(c.bufLocked(), s.id, http2.ErrCodeNo)
	}
}

// head writes the header of a response.
func (c *Conn) head(s *stream, resp *exchange.Response, length int64, end bool) {
	c.mu.Lock()
	if s.awaitLocked(0) == nil {
		c.appendHeaderLocked(s, resp, length, end)
	}
	s.inTimeLocked()
	c.unlock()
	if resp.Reader != nil || end { // the first bytes may come much later
		c.flush()
	}
}

// small writes a small response. Responses to unknown clients are counted until they have been
// written. The first one ends the connection with the streams that have begun: a request of a few
// bytes, which refer to earlier headers (HPACK), must not cost a response each time. On a connection
// that has served a user, the streams on their way are the user's, so they are not ignored.
func (c *Conn) small(s *stream, resp *exchange.Response, head bool) {
	switch known := c.net.Known(); {
	case known && resp.Last:
		c.drain()
	case !known:
		c.mu.Lock()
		// A 503 or 429 may be no fault of the client, which need not connect again for each.
		if resp.Status == http.StatusServiceUnavailable || resp.Status == http.StatusTooManyRequests {
			c.mu.spared++
		} else {
			c.mu.spared = wastedMax
		}
		if c.mu.spared >= wastedMax {
			c.refuseLocked()
		}
		c.unlock()
		network := access.Network(c.net.RemoteAddr().String())
		if !c.server.Strangers.Try(network, 1) {
			c.server.Metrics.ConnectionRefused("strangers")
			c.reset(s.id, http2.ErrCodeEnhanceYourCalm)
			return
		}
		defer c.server.Strangers.Give(network, 1)
		defer c.written()
	}
	c.whole(s, resp, head)
}

// strangersMax limits the responses that are being written to unknown clients, on all connections.
// A client is unknown until one of its requests is authenticated. These responses do not count in the
// memory of strangers: when that is full, the client must learn that it may try again.
const strangersMax = 1000

// NewStrangers returns the limit of a server's responses to unknown clients, which share it by network.
func NewStrangers() *fair.Pool { return fair.NewPool(strangersMax, true) }

// goOn sends 100 Continue, which asks the client for the body that it announced.
func (c *Conn) goOn(s *stream) {
	c.mu.Lock()
	if s.err == nil && c.mu.err == nil && !s.headed {
		c.mu.encoder.goOn()
		c.mu.buf = c.mu.encoder.appendBlock(c.bufLocked(), s.id, false, c.mu.frameMax)
	}
	c.unlock()
	c.flush()
}

// whole writes a small response, in one write if possible.
func (c *Conn) whole(s *stream, resp *exchange.Response, head bool) {
	p := resp.Bytes
	if head {
		p = nil
	}
	c.mu.Lock()
	if s.awaitLocked(0) == nil {
		c.appendHeaderLocked(s, resp, int64(len(resp.Bytes)), len(p) == 0)
		n := c.appendDataLocked(s, p, bufferMax)
		if p = p[n:]; n > 0 && len(p) == 0 {
			c.mu.buf = appendEnd(c.mu.buf, s.id)
			c.endedLocked(s)
		}
	}
	s.inTimeLocked()
	c.unlock()
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

// finish ends a response.
func (c *Conn) finish(s *stream) {
	c.mu.Lock()
	if s.err == nil && c.mu.err == nil {
		c.mu.buf = appendEnd(c.bufLocked(), s.id)
		c.endedLocked(s)
	}
	c.unlock()
	c.flush()
}

// stream begins an endless body. It returns true if a pump writes the rest and then closes the response.
func (c *Conn) stream(s *stream, rt exchange.Route, resp *exchange.Response) (pumped bool, bytes int64) {
	s.stall = c.server.Options().Stall
	s.unread = fair.NewGuard(exchange.PieceSize, c.net.UnreadIn, s.stalled)
	c.head(s, resp, -1, false)
	ended := c.server.Metrics.WatchOpened(rt)
	out := &exchange.ChunkWriter{To: s, Unframed: true, Large: s.unread.Large}
	w, ok := resp.Stream.(*watch.Watch)
	if !ok || !w.Cheap() {
		defer func() { ended(resp.Stream.Reason()) }()
		c.flush() // the first event may come much later
		resp.Stream.Run(&s.ctx, out)
		c.finish(s)
		return false, int64(out.Sent)
	}
	defer func() {
		if !pumped { // also if Open panicked
			w.Close()
			ended(w.Reason())
		}
	}()
	if !w.Open(&s.ctx, out) {
		c.finish(s)
		return false, int64(out.Sent)
	}
	c.mu.Lock()
	s.pumped, s.out = w, out
	s.closed = func(reason string) {
		ended(reason)
		resp.Close(int64(out.Sent))
	}
	c.unlock()
	out.To = (*eager)(s)
	c.running.Add(1)
	w.Cursor.Notify(s.ready)
	s.ready() // for events that arrived before Notify
	return true, 0
}

// broken resets a stream whose response could not be written completely, unless the client has
// reset the stream.
func (c *Conn) broken(s *stream) {
	c.mu.Lock()
	_, byClient := errors.AsType[http2.StreamError](s.err)
	c.unlock()
	if !byClient {
		c.reset(s.id, http2.ErrCodeInternal)
	}
}
