package h2

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Server serves connections on which TLS agreed on HTTP/2.
type Server struct {
	Handler exchange.Handler
	Limits  func() exchange.Limits
	Slots   *fair.Slots // for long responses
	// Strangers limits the responses that are being written to unknown clients.
	Strangers *fair.Pool
	Metrics   *metrics.Metrics
	Log       *zap.Logger
	// Serving ends when open requests are aborted. Draining ends when the server begins to drain.
	Serving, Draining context.Context //nolint:containedctx // they are the server's

	pump pump
}

const (
	// streamsMax limits the concurrent requests of a connection. Most of them are watches.
	// client-go opens another connection for further requests.
	streamsMax = 1000
	// frameMax limits a client's frame, in bytes. The protocol allows no lower maximum.
	frameMax = 16 << 10
	// windowStream limits the bytes of a body that are received but not yet read. windowConn limits
	// the sum of these bytes for all bodies of a connection. windowInitial is the protocol's
	// initial window.
	windowStream, windowConn, windowInitial = 64 << 10, 4 << 20, 1<<16 - 1
	windowMax                               = 1<<31 - 1
	// bufferMax is the number of bytes to collect before a write.
	bufferMax = 64 << 10
	// bufferRoom is the length from which a buffer has no room for data.
	bufferRoom = bufferMax - headSize
	// controlMax limits the unread responses to PING, SETTINGS and broken streams, in bytes.
	// controlUnknown limits those to an unknown client.
	controlMax, controlUnknown = 64 << 10, 16 << 10
	// wastedMax limits what waste counts of an unknown client, and also the refusals that do not
	// end its connection.
	wastedMax = 100
	// unsentFree is the number of bytes of a watch that may stay unsent without room.
	unsentFree = 4 << 10
	// overdueAfter is how long a stream waits for more window than there is.
	overdueAfter = 50 * time.Millisecond
	// gatherLeast is the window of streams and of the connection from which a client does not run
	// dry while its WINDOW_UPDATEs are read together. After one that is too small, reads bring more
	// for gatherFor; a client that goes on to read sends the next one in that time.
	gatherLeast, gatherFor = 1 << 20, 3 * conn.GatherTime
	// settingsMax is the maximum number of settings in a frame, as in x/net.
	settingsMax = 100

	prefaceTimeout, settingsTimeout = 10 * time.Second, 2 * time.Second
	// pingAfter is the time without a frame from the client after which the server sends a PING.
	// pingTimeout is the maximum time until the client responds.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
	// drainGrace is the longest time between the first GOAWAY and the second GOAWAY.
	drainGrace = 5 * time.Second
)

// drainPing is the payload of the PING behind the first GOAWAY. A client that answers it has read
// the GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

// Conn is one connection. It joins a reader, a writer and streams, from first frame to last.
type Conn struct {
	server  *Server
	net     *conn.Conn
	running sync.WaitGroup // handlers, open watches, and the goroutine of flushAll
	reader  *reader
	writer  *writer
	streams *streams
	intake  *intake
	timer   *time.Timer // calls look
	asked   time.Time   // when the last PING was sent; the writer's lock guards it
}

// Serve serves a connection to its end. While the connection is idle, the frames of Serve and of
// what it calls are the stack of its goroutine. Below 1.2 KiB, the stack has 4 KiB instead of 8.
func (s *Server) Serve(nc *conn.Conn) {
	defer nc.Close() //nolint:errcheck // nothing more is written
	c, ended := s.open(nc)
	c.writer.flushSoon()
	err := c.reader.serve()
	if c.reader.frames.Refused {
		s.Metrics.ConnectionRefused("heads")
	}
	ended()
	c.end(err)
	c.running.Wait()
	written := c.writer.mu.err == errClosed //nolint:errorlint // no write has failed
	if written && !errors.Is(err, io.EOF) {
		nc.InputLeft = true // a TCP reset could overtake the last frames
	}
}

// open prepares a connection. The caller must call ended when it has ended.
func (s *Server) open(nc *conn.Conn) (c *Conn, ended func()) {
	limits := s.Limits()
	nc.Stall = min(limits.Stall, limits.Write)
	const most = bufferMax + 2*exchange.PieceSize
	nc.Guard = fair.NewGuard(most, conn.Unread{Conn: nc})
	c = &Conn{server: s, net: nc}
	c.writer = newWriter(nc, &s.pump, &c.running)
	c.streams = &streams{
		net:  nc,
		w:    c.writer,
		open: map[uint32]*stream{},
		idle: time.Now(),
	}
	c.intake = &intake{w: c.writer, left: windowConn}
	c.reader = newReader(c, limits.HeaderBytes)
	buf := appendSettings(c.writer.bufLocked(), // SETTINGS must precede even a GOAWAY
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: frameMax},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streamsMax},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.reader.framer.MaxHeaderListSize},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowStream})
	c.writer.mu.buf = appendWindowUpdate(buf, 0, windowConn-windowInitial)
	undrain := context.AfterFunc(s.Draining, c.streams.drain)
	uncut := context.AfterFunc(s.Serving, c.cut)
	c.timer = time.AfterFunc(pingTimeout, c.look)
	return c, func() {
		undrain()
		uncut()
	}
}

// begin starts the handler of a request, unless new streams are ignored meanwhile. req is nil if
// its header was too long. If ended is false, a body follows.
func (c *Conn) begin(id uint32, req *exchange.Request, ended bool) {
	s := newStream(c, id)
	if !c.streams.add(s) {
		return
	}
	if c.server.Serving.Err() != nil { // cut may have missed this stream
		s.ctx.End(c.running.Go)
	}
	if !ended {
		s.receive(req)
	}
	c.running.Go(func() { s.handle(req) })
}

func (c *Conn) cut() {
	c.writer.mu.Lock()
	defer c.writer.unlock()
	for _, s := range c.streams.open {
		s.ctx.End(c.running.Go)
	}
}

// end ends all streams, and waits until everything is written.
func (c *Conn) end(err error) {
	c.timer.Stop()
	w := c.writer
	w.mu.Lock()
	c.streams.endLocked(err)
	w.flushAndUnlock(true)
	w.mu.Lock()
	defer w.unlock()
	for w.mu.writing { // ends, because each write has a deadline
		w.mu.written.Wait()
	}
	w.failLocked(errClosed)
	if c.streams.grace != nil {
		c.streams.grace.Stop()
	}
}

// look pings a silent client, disconnects one that does not respond, and drains an idle connection.
func (c *Conn) look() {
	heard := c.reader.began.Add(time.Duration(c.reader.heard.Load()))
	now, w := time.Now(), c.writer
	w.mu.Lock()
	next := heard.Add(pingAfter)
	switch {
	case w.mu.err != nil:
		w.unlock()
		return
	case c.asked.After(heard):
		if next = c.asked.Add(pingTimeout); !now.Before(next) {
			w.failLocked(errSilent)
		}
	case !now.Before(next):
		c.asked, next = now, now.Add(pingTimeout)
		w.mu.buf = appendPing(w.bufLocked(), 0, [8]byte{})
	}
	over := false
	if len(c.streams.open) == 0 {
		idle := c.streams.idle.Add(c.server.Limits().Idle)
		if over = !now.Before(idle); idle.Before(next) {
			next = idle
		}
	}
	w.unlock()
	if over { // drain first, because a new request may be on its way
		c.streams.drain()
		next = now.Add(pingTimeout)
	}
	w.flushSoon()
	c.timer.Reset(time.Until(next))
}

var errSilent = errors.New("the client does not answer a ping")
