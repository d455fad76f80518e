package conn

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// socket is the TCP connection below TLS. It keeps the bytes that the kernel does not accept, and
// flush writes them. Two goroutines may write, because a TLS read can send a response while it
// holds TLS's own lock. If this response waited for the client, the next writer would wait too.
//
// A writer writes one piece, and the next only after flush has written all of it. Besides, the
// socket keeps only responses of TLS. A client that causes too many of them is disconnected.
type socket struct {
	net.Conn
	now       immediate // nil if the socket can only wait: then it keeps all writes
	gather    gathering
	handshake *handshake // nil unless TLS shakes hands, in one goroutine; its writes wait

	// reading belongs to the goroutine that reads. A connection that may be silent for long waits
	// for one byte below TLS, and then reads without waiting what has arrived.
	reading struct {
		first   [1]byte
		peeked  bool     // first was read but not yet passed to the reader
		now     bool     // reads do not wait but fail as after a deadline
		records *records // nil without TLS
	}

	mu struct {
		sync.Mutex
		collects bool // writes are kept until flushNow
		flushing bool // flush writes what was kept; further writes are kept
		// left has the bytes that the kernel has not accepted, up to leftMax; nil for none.
		left   *bytes.Buffer
		broken error // the error of a write that may have been partial
	}
}

const (
	// leftMax limits the kept bytes. Half of it is for an encrypted piece and a bookmark, and half
	// for responses of TLS. While flush writes the kept bytes, only responses of TLS are added.
	leftMax = 2 * exchange.PieceSize
	// unsentMax limits the written bytes that the kernel has not sent yet: two pieces. Without this
	// limit, the kernel keeps up to 4 MiB of the container's memory for each client that does not
	// read. The proxy also encodes all these bytes before a write waits.
	unsentMax = 2 * exchange.PieceSize
	// tcpNotSentLowWater is Linux's TCP_NOTSENT_LOWAT. Package syscall does not define it.
	tcpNotSentLowWater = 25
)

var errUnread = errors.New("the client does not read the answers to what it asks")

func newSocket(c net.Conn) *socket {
	return &socket{
		Conn:   c,
		now:    immediateOf(c),
		gather: gathering{began: time.Now()},
	}
}

// kept has buffers for a piece and what TLS adds to it.
var kept = sync.Pool{New: func() any {
	const overhead = 1 << 10
	return bytes.NewBuffer(make([]byte, 0, exchange.PieceSize+overhead))
}}

func free(b *bytes.Buffer) {
	if b.Cap() <= leftMax {
		b.Reset()
		kept.Put(b)
	}
}

func (s *socket) Write(p []byte) (n int, err error) {
	if s.handshake != nil {
		return s.Conn.Write(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.broken == nil && !s.mu.collects && !s.mu.flushing && s.mu.left == nil {
		n = s.writeNowLocked(p)
	}
	most := leftMax
	if s.mu.flushing {
		most -= exchange.PieceSize
	}
	rest := p[n:]
	switch {
	case s.mu.broken != nil:
		return 0, s.mu.broken
	case len(rest) == 0:
		return len(p), nil
	case s.mu.left == nil:
		s.mu.left = kept.Get().(*bytes.Buffer)
	}
	if s.mu.left.Len()+len(rest) > most {
		s.mu.broken = errUnread
		return 0, errUnread
	}
	s.mu.left.Write(rest)
	return len(p), nil
}

func (s *socket) writeNowLocked(p []byte) (n int) {
	if s.now == nil {
		return 0
	}
	n, err := s.now.WriteNow(p)
	if err != nil && !errors.Is(err, syscall.EAGAIN) {
		s.mu.broken = err
	}
	return n
}

func (s *socket) collect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.collects = true
}

// flushNow writes what the kernel accepts of the bytes that were kept.
func (s *socket) flushNow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.collects = false
	if left := s.mu.left; left != nil && !s.mu.flushing && s.mu.broken == nil {
		left.Next(s.writeNowLocked(left.Bytes()))
		if left.Len() == 0 {
			s.mu.left = nil
			free(left)
		}
	}
	return s.mu.broken
}

// flush writes the kept bytes, and waits for the client.
func (s *socket) flush() error {
	for {
		left, err := s.take()
		if left == nil || err != nil {
			return err
		}
		_, err = left.WriteTo(s.Conn)
		free(left)
		if err != nil {
			s.mu.Lock()
			s.mu.broken = err
			s.mu.Unlock()
		}
	}
}

func (s *socket) take() (*bytes.Buffer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.mu.left
	s.mu.left = nil
	s.mu.flushing = left != nil && s.mu.broken == nil
	return left, s.mu.broken
}

// CloseWrite ends the writing side of the connection.
func (s *socket) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// await waits until at least one byte can be read.
func (s *socket) await() error {
	if s.reading.peeked || len(s.gather.kept) > 0 {
		return nil
	}
	s.gather.wake(s, 1)
	n, err := s.Conn.Read(s.reading.first[:])
	if s.reading.peeked = n > 0; s.reading.peeked {
		return nil
	}
	return err
}

func (s *socket) Read(p []byte) (n int, err error) {
	r := s.reading.records
	if r != nil && !r.want() && s.handshake == nil {
		return 0, errNoData
	}
	n, err = s.read(p)
	if r != nil {
		r.read(p[:n])
	}
	if s.handshake != nil && !s.handshake.grows(n) {
		return 0, ErrHeads
	}
	return n, err
}

func (s *socket) read(p []byte) (n int, err error) {
	switch {
	case len(s.gather.kept) > 0:
		return s.gather.take(p), nil
	case s.now != nil && !s.reading.now && !s.reading.peeked && s.gather.active():
		return s.gather.read(s, p)
	}
	if s.reading.peeked && len(p) > 0 {
		s.reading.peeked = false
		p[0] = s.reading.first[0]
		n, p = 1, p[1:]
		if !s.reading.now {
			return n, nil
		}
	}
	if !s.reading.now {
		s.gather.wake(s, 1)
		return s.Conn.Read(p)
	}
	more, err := s.now.ReadNow(p)
	switch n += more; {
	case n > 0:
		return n, nil // the next read returns the error again
	case errors.Is(err, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded
	}
	return 0, err
}
