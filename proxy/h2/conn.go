package h2

import (
	"container/list"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Options are the settings of connections.
type Options struct {
	Limits exchange.Limits
	// Stall is the time for which a client may leave a watch unread before it is disconnected.
	Stall time.Duration
	// GoawayChance is the probability, from 0 to 1, that a request over HTTP/2 makes the server end
	// its connection with GOAWAY.
	GoawayChance float64
}

// Server serves connections on which TLS agreed on HTTP/2.
type Server struct {
	Handler exchange.Handler
	Options func() Options
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
	// frameMax is the maximum size of a client's frame, in bytes. The protocol allows no lower
	// maximum.
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
	// wastedMax limits what waste counts of an unknown client, and also the refusals that do not end
	// its connection.
	wastedMax = 100
	// unsentFree is the number of bytes of a watch that may stay unsent without room.
	unsentFree = 4 << 10
	// overdueAfter is how long a stream waits for more window than there is.
	overdueAfter = 50 * time.Millisecond
	// gatherLeast is the window of streams and of the connection from which a client does not run dry
	// while its WINDOW_UPDATEs are read together. After one that is too small, reads bring more for
	// gatherFor; a client that goes on to read sends the next one in that time.
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

// Conn is one connection. One goroutine reads its frames.
type Conn struct {
	server   *Server
	net      *conn.Conn
	reader   *conn.FrameReader
	framer   *http2.Framer
	running  sync.WaitGroup // handlers, open watches, writers
	received atomic.Int64   // the receive window
	wasted   int            // what waste has counted
	began    time.Time
	heard    atomic.Int64 // when the last frame was received, in nanoseconds since began
	timer    *time.Timer  // calls look

	mu struct {
		sync.Mutex
		written *sync.Cond // signaled when a writer stops or err is set
		err     error      // why writing has ended

		streams  map[uint32]*stream // streams with running handlers or open watches
		last     uint32             // the last stream that the client began
		taken    uint32             // the last stream with a handler
		done     int                // number of streams whose responses have ended
		idle     time.Time          // when the last stream ended
		asked    time.Time          // when the last PING was sent
		drain    *time.Timer        // fires when new streams must be ignored; nil before a drain
		refusing bool               // new streams are ignored
		spared   int                // refusals that have not ended the connection of an unknown client

		window, initial int64 // send windows of the connection and of new streams
		widest          int64 // the largest window of the connection so far
		frameMax        int   // the largest frame that the client accepts

		buf     []byte // frames to be written; nil if there are none
		pooled  *[]byte
		control int   // bytes of control frames in buf
		owed    int64 // received bytes not yet returned by WINDOW_UPDATE
		writing bool  // there is a writer
		waiting bool  // the writer waits for the client, or has waited
		encoder *encoder

		forRoom, forWindow list.List // streams that wait for room or the connection's window
		ready              []*stream // watches with work for the pump
		queued             bool      // the connection is in the pump's queue
	}
}

// Serve serves a connection to its end. While the connection is idle, the frames of Serve and of what
// it calls are the stack of its goroutine. Below 1.2 KiB, the stack has 4 KiB instead of 8.
func (s *Server) Serve(nc *conn.Conn) {
	defer nc.Close() //nolint:errcheck // nothing more is written
	c, ended := s.open(nc)
	err := c.serve()
	ended()
	c.end(err)
	c.running.Wait()
	if c.mu.err == errClosed && !errors.Is(err, io.EOF) { //nolint:errorlint // no write has failed
		nc.Unread = true // a TCP reset could overtake the last frames
	}
}

// open prepares a connection. The caller must call ended when it has ended.
func (s *Server) open(nc *conn.Conn) (c *Conn, ended func()) {
	c = &Conn{server: s, net: nc, began: time.Now()}
	c.mu.written = sync.NewCond(&c.mu)
	c.mu.streams = map[uint32]*stream{}
	c.mu.window, c.mu.widest, c.mu.initial, c.mu.frameMax = windowInitial, windowInitial, windowInitial, frameMax
	c.mu.encoder = newEncoder()
	nc.Stall = min(s.Options().Stall, s.Options().Limits.Write)
	nc.Guard = fair.NewGuard(bufferMax+2*exchange.PieceSize, nc.UnreadIn, func() { nc.LimitWrites(time.Now()) })
	c.reader = &conn.FrameReader{Conn: nc, Free: frameMax, Refused: func() { s.Metrics.ConnectionRefused("heads") }}
	c.framer = http2.NewFramer(nil, c.reader)
	c.framer.SetMaxReadFrameSize(frameMax)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	c.framer.MaxHeaderListSize = uint32(s.Options().Limits.HeaderBytes) //nolint:gosec // a small number
	c.framer.SetReuseFrames()
	c.mu.buf = appendSettings(c.bufLocked(), // SETTINGS must precede even a GOAWAY
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: frameMax},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streamsMax},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.framer.MaxHeaderListSize},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowStream})
	c.mu.buf = appendWindowUpdate(c.mu.buf, 0, windowConn-windowInitial)
	c.received.Store(windowConn)
	undrain, uncut := context.AfterFunc(s.Draining, c.drain), context.AfterFunc(s.Serving, c.cut)
	c.mu.idle = c.began
	c.timer = time.AfterFunc(pingTimeout, c.look)
	return c, func() {
		undrain()
		uncut()
	}
}

func (c *Conn) serve() error {
	c.flushSoon()
	defer c.reader.FrameEnds()
	if err := c.greeted(); err != nil {
		return err
	}
	for {
		if err := c.take(c.framer.ReadFrame()); err != nil {
			return err
		}
	}
}

// take handles a frame that was read.
func (c *Conn) take(f http2.Frame, err error) error {
	c.reader.FrameEnds()
	c.heard.Store(int64(time.Since(c.began)))
	if err == nil {
		err = c.frame(f)
	}
	switch {
	case errors.Is(err, http2.ErrFrameTooLarge):
		err = http2.ConnectionError(http2.ErrCodeFrameSize)
	case errors.Is(err, conn.ErrHeads): // the rest of a header block cannot be left out
		err = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if broken, ok := errors.AsType[http2.StreamError](err); ok {
		c.reset(broken.StreamID, broken.Code)
		return c.waste()
	}
	return err
}

// waste counts a stream that is broken, ignored or canceled. A header block of some bytes may refer to
// 64 KiB of earlier fields (HPACK), so an unknown client is disconnected beyond wastedMax. A change of
// all windows counts, too: it may wake all streams.
func (c *Conn) waste() error {
	if c.wasted++; c.wasted > wastedMax && !c.net.Known() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// unlock releases the lock. If there is room in the buffer or the window, unlock first wakes the
// stream that has waited for it longest. A woken stream also calls unlock and so wakes the next
// stream.
func (c *Conn) unlock() {
	c.passLocked()
	c.mu.Unlock()
}

func (c *Conn) passLocked() {
	if len(c.mu.buf) < bufferRoom {
		wakeFirst(&c.mu.forRoom, math.MaxInt64)
		wakeFirst(&c.mu.forWindow, c.mu.window)
	}
}

// wakeFirst wakes the first stream of a queue if the window is enough for it.
func wakeFirst(line *list.List, window int64) {
	if e := line.Front(); e != nil {
		if s := e.Value.(*stream); window >= s.least {
			s.leaveLocked()
			s.wakeLocked()
		}
	}
}

// cut ends the contexts of all streams.
func (c *Conn) cut() {
	c.mu.Lock()
	defer c.unlock()
	for _, s := range c.mu.streams {
		s.ctx.End(c.running.Go)
	}
}

// end ends all streams. If the client violated the protocol, end sends a GOAWAY with the error
// code.
func (c *Conn) end(err error) {
	c.timer.Stop()
	c.mu.Lock()
	for _, s := range c.mu.streams { // from now on no stream appends frames
		s.endLocked(errClosed)
	}
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		c.mu.buf = appendGoaway(c.bufLocked(), c.mu.taken, http2.ErrCode(ce))
	}
	c.unlock()
	c.flush()
	c.mu.Lock()
	defer c.unlock()
	for c.mu.writing { // ends, because each write has a deadline
		c.mu.written.Wait()
	}
	c.failLocked(errClosed)
	if c.mu.drain != nil {
		c.mu.drain.Stop()
	}
}

var errClosed = errors.New("the connection is closed")

// failLocked ends writing, and so also reading.
func (c *Conn) failLocked(err error) {
	if err != nil && c.mu.err == nil {
		c.mu.err = err
		c.net.Interrupt()
		c.mu.written.Broadcast()
		for _, s := range c.mu.streams {
			s.changed.Broadcast()
		}
	}
}

// look sends a PING if the client is silent. It disconnects a client that does not respond, and
// drains an idle connection.
func (c *Conn) look() {
	heard, now := c.began.Add(time.Duration(c.heard.Load())), time.Now()
	c.mu.Lock()
	next := heard.Add(pingAfter)
	switch {
	case c.mu.err != nil:
		c.unlock()
		return
	case c.mu.asked.After(heard):
		if next = c.mu.asked.Add(pingTimeout); !now.Before(next) {
			c.failLocked(errSilent)
		}
	case !now.Before(next):
		c.mu.asked, next = now, now.Add(pingTimeout)
		c.mu.buf = appendPing(c.bufLocked(), 0, [8]byte{})
	}
	over := false
	if len(c.mu.streams) == 0 {
		idle := c.mu.idle.Add(c.server.Options().Limits.Idle)
		if over = !now.Before(idle); idle.Before(next) {
			next = idle
		}
	}
	c.unlock()
	if over { // drain first, because a new request may be on its way
		c.drain()
		next = now.Add(pingTimeout)
	}
	c.flushSoon()
	c.timer.Reset(time.Until(next))
}

var errSilent = errors.New("the client does not answer a ping")

// drain makes the client use another connection. The first GOAWAY announces the end, and the second
// GOAWAY names the last stream. A PING between them makes a round trip, because streams may be on
// their way. The client may send streams after the last again on another connection.
func (c *Conn) drain() {
	c.mu.Lock()
	if c.mu.drain == nil && !c.mu.refusing && c.mu.err == nil {
		c.mu.buf = appendGoaway(c.bufLocked(), windowMax, http2.ErrCodeNo)
		c.mu.buf = appendPing(c.mu.buf, 0, drainPing)
		c.mu.drain = time.AfterFunc(drainGrace, c.drained)
	}
	c.unlock()
	c.flushSoon()
}

// drained makes the connection end with its last stream.
func (c *Conn) drained() {
	c.mu.Lock()
	idle := len(c.mu.streams) == 0
	if c.mu.drain == nil || c.mu.refusing {
		c.unlock()
		return
	}
	c.refuseLocked()
	c.unlock()
	c.flushSoon()
	if idle {
		c.net.Interrupt()
	}
}

// refuseLocked makes the server ignore new streams, so that the connection ends with its last one.
// The client may send them again on another connection.
func (c *Conn) refuseLocked() {
	if c.mu.refusing {
		return
	}
	if c.mu.drain != nil {
		c.mu.drain.Stop()
	}
	c.mu.refusing = true
	c.mu.buf = appendGoaway(c.bufLocked(), c.mu.taken, http2.ErrCodeNo)
}
