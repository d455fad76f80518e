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

func (s *stream) handle(req *exchange.Request) {
	c := s.c
	var resp *exchange.Response
	onPump, bytes := false, int64(0)
	defer func() {
		if p := recover(); p != nil {
			c.server.Metrics.Panicked(c.server.Log, metrics.InStream, p)
			c.streams.reset(s.id, http2.ErrCodeInternal, nil)
		}
		if !onPump {
			if resp != nil {
				resp.Close(bytes)
			}
			s.close()
		}
	}()
	if req == nil {
		const status = http.StatusRequestHeaderFieldsTooLarge
		failure := exchange.Failure(status, "", "the header of the request is too long")
		s.small(exchange.StatusResponse(failure), false)
		return
	}
	req.Client = s
	if rand.Float64() < c.server.Limits().GoawayChance {
		c.streams.drain()
	}
	resp = c.server.Handler.Handle(&s.ctx, req)
	head := req.Method == http.MethodHead ||
		resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified
	switch body := resp.Body.(type) {
	case exchange.Stream:
		onPump, bytes = s.openStream(req.Route, resp, body)
	case exchange.Tunnel:
		body.Abandon() // HTTP/2 has no upgrade
		c.streams.reset(s.id, http2.ErrCodeInternal, nil)
	case *fair.List:
		s.out.more = true
		s.head(resp, body.Length, head, head)
		if !head {
			var err error
			bytes, err = body.Write(&s.out, req.Memory.Try(fair.LargeBuffer))
			s.end(err)
		}
	case *exchange.Reader:
		if resp.Lasts {
			s.out.stall = body.Stall
		}
		s.head(resp, body.Length, head, true) // the first bytes may come much later
		if !head {
			var err error
			bytes, err = resp.Copy(&s.ctx, &s.out, req, c.server.Slots)
			s.end(err)
		}
	default:
		if !head {
			bytes = int64(len(resp.Bytes()))
		}
		// It was refused before it counted, so only the response may wait for the client.
		if req.Memory == nil {
			resp.Close(bytes) // no longer refers to the request
			s.Interrupt()
		}
		s.small(resp, head)
	}
}

func (s *stream) appendHeaderLocked(resp *exchange.Response, length int64, end bool) {
	s.headed = true
	s.c.writer.mu.peer.encoder.answer(resp, length)
	s.appendBlockLocked(end)
	if end {
		s.endedLocked()
	}
}

func (s *stream) appendBlockLocked(end bool) {
	w := s.c.writer
	w.mu.buf = w.mu.peer.encoder.appendBlock(w.bufLocked(), s.id, end, w.mu.peer.frameMax)
}

// endedLocked must be called after the end of a response was appended. If the request has not
// ended, RST_STREAM makes the client stop sending, as with kube-apiserver.
func (s *stream) endedLocked() {
	s.done = true
	s.c.streams.done++
	if s.body != nil && !s.body.Ended() {
		w := s.c.writer
		w.mu.buf = appendReset(w.bufLocked(), s.id, http2.ErrCodeNo)
	}
}

func (s *stream) head(resp *exchange.Response, length int64, end, flush bool) {
	w := s.c.writer
	w.mu.Lock()
	if s.out.awaitLocked(0) == nil {
		s.appendHeaderLocked(resp, length, end)
	}
	s.out.inTimeLocked()
	w.unlock()
	if flush {
		w.flush()
	}
}

// small writes a small response. Those to unknown clients are counted until they are written, and
// end the connection (see refused): a request of a few bytes, which refer to earlier headers
// (HPACK), must not cost a response each time. On a connection that has served a user, the streams
// on their way are the user's, so they are not ignored.
func (s *stream) small(resp *exchange.Response, head bool) {
	c := s.c
	switch known := c.net.Account.Known(); {
	case known && resp.Last:
		c.streams.drain()
	case !known:
		c.streams.refused(resp.Status)
		network := access.Network(c.net.RemoteAddr().String())
		if !c.server.Strangers.Try(network, 1) {
			c.server.Metrics.ConnectionRefused("strangers")
			c.streams.reset(s.id, http2.ErrCodeEnhanceYourCalm, nil)
			return
		}
		defer c.server.Strangers.Give(network, 1)
		defer c.writer.awaitWritten()
	}
	s.whole(resp, head)
}

// strangersMax limits the unwritten responses to unknown clients, on all connections. They do not
// count in the memory of strangers: when that is full, clients must learn that they may try again.
const strangersMax = 1000

// NewStrangers returns the limit of a server's responses to unknown clients, shared by network.
func NewStrangers() *fair.Pool { return fair.NewPool(strangersMax, true) }

func (s *stream) goOn() {
	w := s.c.writer
	w.mu.Lock()
	if s.err == nil && w.mu.err == nil && !s.headed {
		w.mu.peer.encoder.goOn()
		s.appendBlockLocked(false)
	}
	w.flushAndUnlock(true)
}

// whole writes a small response, in one write if possible.
func (s *stream) whole(resp *exchange.Response, head bool) {
	p := resp.Bytes()
	if head {
		p = nil
	}
	w := s.c.writer
	w.mu.Lock()
	if s.out.awaitLocked(0) == nil {
		s.appendHeaderLocked(resp, int64(len(resp.Bytes())), len(p) == 0)
		n := s.out.appendLocked(p, bufferMax)
		if p = p[n:]; n > 0 && len(p) == 0 {
			w.mu.buf = appendEnd(w.mu.buf, s.id)
			s.endedLocked()
		}
	}
	s.out.inTimeLocked()
	w.unlock()
	if len(p) == 0 {
		w.flush()
		return
	}
	_, err := s.out.Write(p)
	s.end(err)
}

func (s *stream) finish() {
	w := s.c.writer
	w.mu.Lock()
	if s.err == nil && w.mu.err == nil {
		w.mu.buf = appendEnd(w.bufLocked(), s.id)
		s.endedLocked()
	}
	w.flushAndUnlock(true)
}

// openStream begins an endless body. If onPump, the pump writes the rest and releases the request.
func (s *stream) openStream(
	rt exchange.Route, resp *exchange.Response, body exchange.Stream,
) (onPump bool, bytes int64) {
	c := s.c
	s.out.stall = c.server.Limits().Stall
	s.out.unread = fair.NewGuard(exchange.PieceSize, s)
	s.head(resp, -1, false, false)
	open := c.server.Metrics.WatchOpened(rt)
	out := &exchange.ChunkWriter{
		To:        &s.out,
		Unchunked: true,
		Guard:     s.out.unread,
	}
	w, ok := body.(*watch.Watch)
	if !ok || !w.Cheap() {
		defer func() { open.Ended(body.Reason()) }()
		c.writer.flush() // the first event may come much later
		body.Run(&s.ctx, out)
		s.finish()
		return false, int64(out.Sent)
	}
	defer func() {
		if !onPump { // also if Open panicked
			w.Close()
			open.Ended(w.Reason())
		}
	}()
	if !w.Open(&s.ctx, out) {
		s.finish()
		return false, int64(out.Sent)
	}
	p := &pumped{
		s:       s,
		watch:   w,
		open:    open,
		release: resp.Release,
		out:     out,
	}
	out.To = p
	c.running.Add(1)
	c.writer.mu.Lock()
	s.out.watch = p
	c.writer.unlock()
	w.Notify(p.ready)
	p.ready() // for events that arrived before Notify
	return true, 0
}

// end ends a response. If err has broken its body, the stream is reset, unless the client has.
func (s *stream) end(err error) {
	if err == nil {
		s.finish()
		return
	}
	c := s.c
	c.writer.mu.Lock()
	_, byClient := errors.AsType[http2.StreamError](s.err)
	c.writer.unlock()
	if !byClient {
		c.streams.reset(s.id, http2.ErrCodeInternal, nil)
	}
}
