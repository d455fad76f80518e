package conn

import (
	"bytes"
	"io"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Fasthttp keeps large buffers for a connection from its first read on. It parses a head again from
// the start whenever more of the head arrives. So fasthttp serves a connection only while there are
// requests, and it receives each head as a whole. Between requests, the connection waits in its own
// goroutine. The connection's buffer is no larger than the bytes that have arrived.

const (
	// warmTime is the time for which fasthttp keeps the connection of a known user after a
	// response. Consecutive requests then need no handover and no copy.
	warmTime = time.Second
	// readSize is the size of one read, in bytes.
	readSize = 4 << 10
	// emptyMax limits the empty lines before a head, in bytes. Some old clients send one after a body.
	emptyMax = 8
)

// Await reads until the head of a request is complete. It also stops if the head is too long or the
// client stops sending. Fasthttp then responds. If there is no room for more bytes in Heads, the
// connection is refused. After more than a few empty lines it ends.
func (c *Conn) Await(first bool, l exchange.Limits) (ok, refused bool) {
	c.Idle, c.HandedBack, c.beyond = false, nil, false
	silence := l.Idle
	if first {
		c.since, silence = time.Now(), l.Read
	}
	if len(c.ahead) == 0 && !c.awaitFirst(c.since.Add(silence)) {
		return false, false
	}
	c.ReadUntil(time.Now().Add(l.Read)) // one deadline for the whole head
	defer c.HeadEnds()
	for empty, from := 0, 0; ; {
		lead := emptyLines(c.ahead)
		c.ahead, empty = c.ahead[lead:], empty+lead
		if empty > emptyMax {
			return false, false
		}
		c.HeadLength = headEnd(c.ahead, from)
		if c.HeadLength > 0 || c.err != nil || len(c.ahead) >= l.HeaderBytes {
			return true, false
		}
		if !c.HeadGrows(int64(cap(c.ahead))) {
			return false, true
		}
		from = len(c.ahead)
		c.readMore()
	}
}

// awaitFirst waits for the first bytes of a head.
func (c *Conn) awaitFirst(until time.Time) bool {
	if c.err != nil {
		return false
	}
	c.wait(until)
	c.readMore()
	c.waited()
	if isTimeout(c.err) && c.socket.now != nil {
		c.readLast()
	}
	return len(c.ahead) > 0
}

// readLast reads the bytes that have arrived together with the deadline. Closing the connection
// would lose them.
func (c *Conn) readLast() {
	_ = c.SetReadDeadline(time.Time{})
	if n, _ := c.readNow(c.readPiece); n > 0 {
		c.err = nil
		c.Ended.Store(false)
	}
}

// readMore waits for more bytes of a head.
func (c *Conn) readMore() {
	if _, err := c.WaitBelowTLS(c.readPiece); err != nil {
		c.err = err
		c.Ended.Store(true)
	}
}

var pieces = sync.Pool{New: func() any { return new([readSize]byte) }}

// readPiece appends the bytes that have arrived to the bytes read ahead.
func (c *Conn) readPiece() (int, error) {
	piece := pieces.Get().(*[readSize]byte)
	defer pieces.Put(piece)
	n, err := c.Conn.Read(piece[:])
	c.ahead = append(c.ahead, piece[:n]...)
	return n, err
}

// WaitBelowTLS calls read until it returns bytes or fails. If the socket has a file descriptor, the
// wait is below TLS.
func (c *Conn) WaitBelowTLS(read func() (int, error)) (int, error) {
	for c.socket.now != nil {
		n, err := c.readNow(read)
		if n > 0 || !isTimeout(err) {
			return n, err
		}
		if err := c.socket.await(); err != nil {
			return 0, err
		}
	}
	return read()
}

// readNow calls read, which then does not wait.
func (c *Conn) readNow(read func() (int, error)) (int, error) {
	c.socket.reading.now = true
	defer func() { c.socket.reading.now = false }()
	return read()
}

// emptyLines returns the length of the empty lines at the start of b.
func emptyLines(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// headEnd returns the length of the head at the start of b, or 0 if the head is incomplete. An
// empty line ends a head. As in fasthttp, empty lines before the head are ignored. The caller knows
// that no head ends before index from.
func headEnd(b []byte, from int) int {
	for at := max(emptyLines(b), from-len("\n\r")); ; {
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

// Read implements net.Conn. A read that begins a request returns a whole head, or io.EOF if no head
// arrives soon.
func (c *Conn) Read(p []byte) (int, error) {
	if c.Idle && (len(c.ahead) > 0 || c.err == nil) {
		return c.readHead(p)
	}
	c.beyond = c.beyond || c.HeadLength == 0
	if len(c.ahead) > 0 {
		return c.readAhead(p), nil
	}
	if c.err != nil { // it was seen while a response was awaited
		c.Ended.Store(true)
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.Ended.Store(true)
	}
	return n, err
}

// readAhead copies a head without the bytes after it, because those bytes must not wait in
// fasthttp's buffer.
func (c *Conn) readAhead(p []byte) int {
	n := len(c.ahead)
	if c.HeadLength > 0 {
		n = c.HeadLength
	}
	n = copy(p, c.ahead[:n])
	c.ahead, c.HeadLength = c.ahead[n:], max(0, c.HeadLength-n)
	if len(c.ahead) == 0 {
		c.ahead = nil
		c.HeadEnds()
	}
	return n
}

// readHead reads the head of the next request if it arrives soon. Otherwise it makes fasthttp
// return the connection.
func (c *Conn) readHead(p []byte) (int, error) {
	c.since, c.beyond = time.Now(), false
	if len(c.ahead) > 0 || !c.Known() {
		*c.HandedBack = true
		return 0, io.EOF
	}
	c.wait(c.since.Add(warmTime))
	n, err := c.Conn.Read(p)
	c.waited()
	if err != nil && !isTimeout(err) {
		c.err = err
		c.Ended.Store(true)
	}
	if end := headEnd(p[:n], 0); end > 0 {
		c.Idle, c.HeadLength = false, 0
		c.ahead = append(c.ahead, p[end:n]...)
		return end, nil
	}
	c.ahead = append(c.ahead, p[:n]...)
	*c.HandedBack = true
	return 0, io.EOF
}

// wait sets a deadline for the first byte of a request.
func (c *Conn) wait(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waiting = until
	c.limitLocked()
}

func (c *Conn) waited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waiting = time.Time{}
}

// drain limits the wait for a request.
func (c *Conn) drain(d *Drain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.drain = d
	if !c.mu.waiting.IsZero() {
		c.limitLocked()
	}
}

func (c *Conn) limitLocked() {
	until := c.mu.waiting
	if d := c.mu.drain; d != nil {
		limit := d.First
		if c.mu.answered {
			limit = time.Now().Add(d.Next)
		}
		if limit.Before(until) {
			until = limit
		}
	}
	_ = c.SetReadDeadline(until) // reads of a broken connection fail anyway
}
