package listen

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// client is a connection over HTTP/1.1. Fasthttp serves it only while there are requests, and gets
// each head as a whole: it keeps large buffers from its first read on, and parses a head again from
// the start whenever more of it arrives. Between requests, the connection waits in a goroutine of
// its own, with a buffer that is no larger than the bytes that have arrived.
//
// While a handler runs, fasthttp does not read the connection, so a client that leaves would be
// noticed only at the next write. CancelWhenGone reads meanwhile, and the next reader gets those
// bytes.
//
// One goroutine at a time may read. Fasthttp uses the connection through a turn.
type client struct {
	*conn.Conn
	ahead []byte      // bytes that were read but not passed on
	head  int         // the length of the whole head at their start; 0 if there is none
	err   error       // why no bytes follow them
	ended atomic.Bool // a read has failed
}

const (
	// readSize is the size of one read, in bytes.
	readSize = 4 << 10
	// emptyMax limits the empty lines before a head, in bytes. Some old clients send one after a
	// body.
	emptyMax = 8
)

var errEmptyLines = errors.New("too many empty lines before a request")

// await reads until the head of a request is complete. It also stops if the head is too long or the
// client stops sending. Fasthttp then responds. await fails if nothing arrives in time, if there is
// no room for the bytes, and after more than a few empty lines.
func (c *client) await(first bool, l exchange.Limits) error {
	if len(c.ahead) == 0 && c.err == nil {
		silence := l.Idle
		if first {
			silence = l.Read
		}
		c.Wait(time.Now().Add(silence), first)
		c.readMore()
		c.Waited()
	}
	if len(c.ahead) == 0 {
		return c.err
	}
	c.ReadUntil(time.Now().Add(l.Read)) // one deadline for the whole head
	defer c.HeadEnds()
	for empty, from := 0, 0; ; {
		lead := len(c.ahead) - len(bytes.TrimLeft(c.ahead, "\r\n"))
		c.ahead, empty = c.ahead[lead:], empty+lead
		if empty > emptyMax {
			return errEmptyLines
		}
		c.head = headEnd(c.ahead, from)
		if c.head > 0 || c.err != nil || len(c.ahead) >= l.HeaderBytes {
			return nil
		}
		if !c.HeadGrows(int64(cap(c.ahead))) {
			return conn.ErrHeads
		}
		from = len(c.ahead)
		c.readMore()
	}
}

// headEnd returns the length of the head at the start of b, or 0 if the head is incomplete. An
// empty line ends a head. The caller knows that no head ends before index from.
func headEnd(b []byte, from int) int {
	for at := max(0, from-len("\n\r")); ; {
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

// readMore waits for more bytes.
func (c *client) readMore() {
	if _, err := c.WaitBelowTLS(c.readPiece); err != nil {
		c.err = err
		c.ended.Store(true)
	}
}

var pieces = sync.Pool{New: func() any { return new([readSize]byte) }}

// readPiece appends the bytes that have arrived to those read ahead.
func (c *client) readPiece() (int, error) {
	piece := pieces.Get().(*[readSize]byte)
	defer pieces.Put(piece)
	n, err := c.Conn.Read(piece[:])
	c.ahead = append(c.ahead, piece[:n]...)
	return n, err
}

// Read implements net.Conn. It returns a head without the bytes after it, because those must not
// wait in fasthttp's buffer.
func (c *client) Read(p []byte) (int, error) {
	if n := len(c.ahead); n > 0 {
		if c.head > 0 {
			n = c.head
		}
		n = copy(p, c.ahead[:n])
		c.ahead, c.head = c.ahead[n:], max(0, c.head-n)
		if len(c.ahead) == 0 {
			c.ahead = nil
			c.HeadEnds()
		}
		return n, nil
	}
	n, err := 0, c.err
	if err == nil {
		n, err = c.Conn.Read(p)
	}
	if err != nil {
		c.ended.Store(true)
	}
	return n, err
}

var longAgo = time.Unix(1, 0)

// readOn reads ahead until the client leaves or sends more than AheadMax, or until the read
// deadline. It returns true if the client is still there.
func (c *client) readOn() (there bool) {
	for c.err == nil && len(c.ahead) < exchange.AheadMax && c.HeadGrows(int64(len(c.ahead))) {
		_, err := c.WaitBelowTLS(c.readPiece)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return true
		}
		c.err = err
	}
	return false
}

// CancelWhenGone implements exchange.Client. A client that meanwhile sends more than AheadMax
// counts as gone.
func (c *client) CancelWhenGone(gone context.CancelFunc) (stop func()) {
	c.ReadUntil(time.Time{})
	var stopping atomic.Bool
	var reading sync.WaitGroup
	reading.Go(func() {
		if c.readOn(); !stopping.Load() {
			gone()
		}
	})
	return func() {
		stopping.Store(true)
		_ = c.SetReadDeadline(longAgo) // wakes the reader
		reading.Wait()
		_ = c.SetReadDeadline(time.Time{})
	}
}

// turn is the time for which fasthttp has a connection. Its fields belong to fasthttp's goroutine:
// after a hijack, another goroutine has the client.
type turn struct {
	*client
	long     bool // fasthttp's buffer is a large one
	idle     bool // a request was answered, and fasthttp has not begun the next one
	returned bool // fasthttp gives the connection back, which stays open
	hijacked bool // a stream or a tunnel takes the connection over
	abandon  func()
}

// Read implements net.Conn. Where fasthttp would wait for the next request, it ends fasthttp's turn.
func (t *turn) Read(p []byte) (int, error) {
	switch {
	case t.hijacked:
		return 0, io.EOF
	case t.idle:
		t.returned = true
		return 0, io.EOF
	}
	return t.client.Read(p)
}

// Close implements net.Conn. Fasthttp also calls it at the end of its turn, and drops a hijack if
// the connection breaks before.
func (t *turn) Close() error {
	if t.returned {
		return nil
	}
	if t.abandon != nil {
		t.abandon()
	}
	return t.client.Close()
}
