package conn

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Fasthttp holds large buffers for a connection from its first read on, and parses a request's
// head anew with each piece of it. So it is given a connection for as long as there are requests
// on it, and each head as a whole. In between, the connection waits in a goroutine of its own with
// a buffer no larger than what has come.

// turn is fasthttp's turn with a connection. Its fields belong to the goroutine that reads.
type turn struct {
	idle  bool      // a request was answered, and the next one has not begun
	again bool      // it is over, and the connection goes on without
	since time.Time // when the connection began to wait
}

const (
	// warmTime is how long fasthttp keeps the connection of a known user after an answer: with
	// one request after another, nothing is handed over and no byte is copied.
	warmTime = time.Second
	// headFree is how much of a head is not counted as one that is gathered.
	headFree = 2 << 10
	// headsMax bounds what is gathered of all heads, beyond headFree of each, in bytes: room
	// for 256 of the largest at a time, and for thousands of ordinary ones.
	headsMax = 16 << 20
)

// Heads counts the bytes of heads that are not complete.
type Heads struct{ bytes atomic.Int64 }

func (h *Heads) take(n int64) bool {
	if h.bytes.Add(n) <= headsMax {
		return true
	}
	h.bytes.Add(-n)
	return false
}

// Await reads until a whole head is there, or as much as will never be one: that is for fasthttp
// to answer. A connection is refused if there is no room for more of its head.
func (c *Conn) Await(first bool, l exchange.Limits, held *Heads) (ok, refused bool) {
	c.turn.idle, c.turn.again = false, false
	silence := l.Idle
	if first {
		c.turn.since, silence = time.Now(), l.Read
	}
	if len(c.ahead) == 0 && !c.awaitFirst(c.turn.since.Add(silence)) {
		return false, false
	}
	c.ReadUntil(time.Now().Add(l.Read)) // from the first byte to the last
	var taken int64
	defer func() { held.bytes.Add(-taken) }()
	for from := 0; ; {
		c.head = headEnd(c.ahead, from)
		if c.head > 0 || c.err != nil || len(c.ahead) >= l.HeaderBytes {
			return true, false
		}
		// A known client counts for its user: unknown ones must not lock it out.
		if more := int64(cap(c.ahead)) - headFree - taken; more > 0 && !c.Known() {
			if !held.take(more) {
				return false, true
			}
			taken += more
		}
		from = len(c.ahead)
		c.readMore()
	}
}

// awaitFirst waits for the first bytes of a head.
func (c *Conn) awaitFirst(until time.Time) bool {
	if c.err != nil || !c.wait(until) {
		return false
	}
	c.readMore()
	c.waited()
	return len(c.ahead) > 0
}

// readMore waits for some more bytes of a head.
func (c *Conn) readMore() {
	if _, err := c.Later(c.readPiece); err != nil {
		c.err = err
		c.eof.Store(true)
	}
}

// headEnd returns the length of the head that b begins with, 0 if it is not complete. It ends
// with an empty line, as fasthttp has it: empty lines before its first one do not count. What
// came before from is known to hold no end.
func headEnd(b []byte, from int) int {
	lead := len(b) - len(bytes.TrimLeft(b, "\r\n"))
	for at := max(lead, from-len("\n\r")); ; {
		n := bytes.IndexByte(b[at:], '\n')
		if n < 0 {
			return 0
		}
		at += n + 1
		switch rest := b[at:]; {
		case bytes.HasPrefix(rest, []byte("\n")):
			return at + 1
		case bytes.HasPrefix(rest, []byte("\r\n")):
			return at + len("\r\n")
		}
	}
}

// Read implements net.Conn. A read that a request begins with gives whole heads, and says that
// nothing more comes if there is none for now.
func (c *Conn) Read(p []byte) (int, error) {
	if c.turn.idle && (len(c.ahead) > 0 || c.err == nil) {
		return c.readHead(p)
	}
	if len(c.ahead) > 0 {
		return c.readAhead(p), nil
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.eof.Store(true)
	}
	return n, err
}

// readAhead gives the head of a request on its own, so that what came behind it does not wait
// in fasthttp's buffer.
func (c *Conn) readAhead(p []byte) int {
	n := len(c.ahead)
	if c.head > 0 {
		n = c.head
	}
	n = copy(p, c.ahead[:n])
	c.ahead, c.head = c.ahead[n:], max(0, c.head-n)
	if len(c.ahead) == 0 {
		c.ahead = nil
	}
	return n
}

// readHead reads the head of a next request if it comes soon.
func (c *Conn) readHead(p []byte) (int, error) {
	c.turn.since = time.Now()
	if len(c.ahead) > 0 || !c.Known() || !c.wait(c.turn.since.Add(warmTime)) {
		c.turn.again = true
		return 0, io.EOF
	}
	n, err := c.Conn.Read(p)
	c.waited()
	if n > 0 && bytes.HasSuffix(p[:n], []byte("\r\n\r\n")) {
		c.turn.idle = false
		return n, nil
	}
	if err != nil && !isTimeout(err) {
		c.err = err
		c.eof.Store(true)
	}
	if c.head = headEnd(p[:n], 0); c.head > 0 {
		c.turn.idle = false
		c.ahead = append(c.ahead, p[c.head:n]...)
		n, c.head = c.head, 0
		return n, nil
	}
	c.ahead = append(c.ahead, p[:n]...)
	c.turn.again = true
	return 0, io.EOF
}

// wait sets a deadline for the first byte of a request, unless none is waited for.
func (c *Conn) wait(until time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.draining {
		return false
	}
	c.mu.waiting = true
	return c.SetReadDeadline(until) == nil
}

func (c *Conn) waited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waiting = false
}

// drain ends the wait for a request.
func (c *Conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.draining = true
	if c.mu.waiting {
		_ = c.SetReadDeadline(longAgo)
	}
}
