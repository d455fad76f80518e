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
// While a handler runs, CancelWhenGone reads, to notice a client that leaves before the next write.
// The next reader gets those bytes.
//
// One goroutine at a time may read. Fasthttp uses the connection as a borrowed one (type borrowed).
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
	// bodyBegin is the number of bytes of a body that fasthttp reads before it calls the handler.
	// lineSize is the memory that it needs for each line of a head, beside the line, in bytes.
	bodyBegin, lineSize = 8 << 10, 128
	// emptyMax limits empty lines before a head, in bytes. Some old clients send one after a body.
	emptyMax = 8
)

var errEmptyLines = errors.New("too many empty lines before a request")

// headEnd ends a head, for fasthttp too. If fasthttp saw no end, it would parse the head again from
// the start for each further byte.
var headEnd = []byte("\r\n\r\n")

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
	for empty, from := 0, 0; ; {
		lead := len(c.ahead) - len(bytes.TrimLeft(c.ahead, "\r\n"))
		c.ahead, empty = c.ahead[lead:], empty+lead
		if empty > emptyMax {
			return errEmptyLines
		}
		if end := bytes.Index(c.ahead[from:], headEnd); end >= 0 {
			c.head = from + end + len(headEnd)
			return nil
		}
		if c.err != nil || len(c.ahead) >= l.HeaderBytes {
			return nil
		}
		if !c.Account.HeadGrows(int64(cap(c.ahead))) {
			return conn.ErrHeads
		}
		from = max(0, len(c.ahead)-len(headEnd)+1)
		c.readMore()
	}
}

func (c *client) readMore() {
	if _, err := c.WaitBelowTLS(c.readPiece); err != nil {
		c.err = err
		c.ended.Store(true)
	}
}

var pieces = sync.Pool{New: func() any { return new([readSize]byte) }}

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
			c.Account.HeadEnds()
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

var (
	longAgo  = time.Unix(1, 0)
	errAhead = errors.New("the client has sent too much before its response ended")
)

// aheadGrace is how long a client may have sent AheadMax ahead: it has read the end of its response
// before stop is called, and may have sent the next request by then.
const aheadGrace = time.Second

// CancelWhenGone implements exchange.Client. Meanwhile it reads ahead. A client that sends more
// than AheadMax, or for whose bytes there is no room, counts as gone.
func (c *client) CancelWhenGone(gone context.CancelFunc) (stop func()) {
	c.ReadUntil(time.Time{})
	stopping, stopped := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		if c.readOn(stopping); c.err != nil {
			gone()
		}
	})
	return func() {
		stopped()
		_ = c.SetReadDeadline(longAgo) // wakes the reader
		reading.Wait()
		_ = c.SetReadDeadline(time.Time{})
	}
}

// readOn reads ahead until the read deadline, or until there can be no further request.
func (c *client) readOn(stopping context.Context) {
	for c.err == nil {
		full := len(c.ahead) >= exchange.AheadMax
		if full {
			select {
			case <-stopping.Done():
				return
			case <-time.After(aheadGrace):
			}
		}
		if full || !c.Account.HeadGrows(int64(len(c.ahead))) {
			c.err, c.InputLeft = errAhead, true
			return
		}
		_, err := c.WaitBelowTLS(c.readPiece)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		c.err = err
	}
}

// borrowed is a connection that fasthttp has for a while. Its fields belong to fasthttp's
// goroutine: after a hijack, another goroutine has the client.
type borrowed struct {
	*client
	buffer   int64 // size of fasthttp's buffer for heads, in bytes
	parsed   int64 // memory of the parsed head, in bytes
	idle     bool  // a request was answered, and fasthttp has not begun the next one
	returned bool  // fasthttp gives the connection back, which stays open
	handled  bool  // fasthttp has called the handler of a request
	hijacked *hijacked
}

type hijacked struct {
	resp    *exchange.Response
	running *sync.WaitGroup // has this one
}

// Read implements net.Conn. Instead of waiting for the next request, fasthttp gives the connection
// back. While it waits for the beginning of a body, its memory counts like a head.
func (t *borrowed) Read(p []byte) (int, error) {
	switch {
	case t.hijacked != nil:
		return 0, io.EOF
	case t.idle:
		t.returned = true
		return 0, io.EOF
	case !t.handled && len(t.ahead) == 0 && !t.Account.HeadGrows(t.buffer+t.parsed+bodyBegin):
		t.err = conn.ErrHeads
	}
	return t.client.Read(p)
}

// Close implements net.Conn. Fasthttp also calls it to give the connection back, and drops a hijack
// if the connection breaks before.
func (t *borrowed) Close() error {
	if t.returned {
		return nil
	}
	if t.hijacked != nil {
		t.hijacked.resp.Abandon()
		t.hijacked.running.Done()
	}
	return t.client.Close()
}
