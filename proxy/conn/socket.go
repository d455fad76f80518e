package conn

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// socket is the TCP connection below TLS. While it is nonblocking, a write does not wait for the
// client: the socket keeps the bytes that the kernel does not accept, and settle writes them. Two
// goroutines may write, because a TLS read can send a response while it holds TLS's own lock. If
// this response blocked, the next writer would block too. So a socket stays nonblocking while a
// pump writes to it.
//
// A pump writes one piece, and the next piece only after settle has written all of the first.
// Besides one piece, the socket keeps only responses of TLS. A client that causes too many such
// responses is disconnected.
type socket struct {
	net.Conn
	now    immediate // nil if the socket can only wait
	gather gathering

	// reading belongs to the goroutine that reads. A goroutine that waits in a read needs a buffer
	// and, with TLS, a large stack. So a connection that may be silent for long waits for one byte
	// below TLS. Then it reads the bytes that have arrived without waiting.
	reading struct {
		first  [1]byte
		peeked bool // first was read but not yet passed to the reader
		now    bool // reads do not wait but fail as after a deadline
		// count is called with the number of bytes of each read. If it returns false, the read
		// fails. It may be nil.
		count func(n int) bool
	}

	mu struct {
		sync.Mutex
		nonblocking bool
		collects    bool   // writes are collected
		collected   []byte // up to leftMax
		settling    bool   // a write waits for the client; others are kept
		left        []byte // bytes that the kernel has not accepted; up to leftMax
		broken      error  // the error of a write that may have been partial
	}
}

const (
	// leftMax limits the kept bytes. Half of it is for an encrypted piece and a bookmark, and half
	// for responses of TLS. While settle writes the kept bytes, only responses of TLS are added.
	leftMax = 2 * exchange.PieceSize
	// unsentMax limits the written bytes that the kernel has not sent yet: two pieces. Without this
	// limit, the kernel keeps up to 4 MiB of the container's memory for each client that does not
	// read. The proxy also encodes all these bytes before a write waits.
	unsentMax = 2 * exchange.PieceSize
	// tcpNotSentLowWater is Linux's TCP_NOTSENT_LOWAT. Package syscall does not define it.
	tcpNotSentLowWater = 25
)

// errUnread says that a client does not read the responses of TLS.
var errUnread = errors.New("the client does not read the answers to what it asks")

func newSocket(c net.Conn) *socket {
	return &socket{Conn: c, now: immediateOf(c), gather: gathering{began: time.Now()}}
}

// setNonblocking sets whether writes return without waiting for the client.
func (s *socket) setNonblocking(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nonblocking = on
}

// wait sets whether a write waits for the client. Meanwhile the socket keeps what others write.
func (s *socket) wait(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.settling = on
}

// collect makes the socket collect what is written to it. TLS writes each record of 16 KiB by itself,
// and so it would wake the client each time.
func (s *socket) collect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.collects, s.mu.collected = true, *collections.Get().(*[]byte)
}

// writeCollected writes what was collected. Meanwhile TLS may add responses, which must not overtake
// it. If a write waits for the client (see wait), this is the one.
func (s *socket) writeCollected(wait bool) error {
	for {
		s.mu.Lock()
		p := s.mu.collected
		s.mu.collected = nil
		if len(p) == 0 || s.mu.broken != nil {
			defer s.mu.Unlock()
			s.mu.collects = false
			return s.mu.broken
		}
		var err error
		if wait {
			s.mu.collects = false
			left := s.mu.left // a response of TLS since the last settle
			s.mu.left = nil
			s.mu.Unlock()
			if len(left) > 0 {
				_, err = s.Conn.Write(left)
			}
			if err == nil {
				_, err = s.Conn.Write(p)
			}
		} else {
			_, err = s.writeLocked(p)
		}
		if cap(p) <= leftMax {
			p = p[:0]
			collections.Put(&p)
		}
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.mu.collects, s.mu.broken = false, err
			return err
		}
	}
}

// collections has buffers for a piece and what TLS adds to it.
var collections = sync.Pool{New: func() any {
	const overhead = 1 << 10
	p := make([]byte, 0, exchange.PieceSize+overhead)
	return &p
}}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	if !s.mu.collects {
		return s.writeLocked(p)
	}
	defer s.mu.Unlock()
	if len(s.mu.collected)+len(p) > leftMax {
		s.mu.broken = errUnread
		return 0, errUnread
	}
	s.mu.collected = append(s.mu.collected, p...)
	return len(p), nil
}

// writeLocked writes, or keeps what the kernel does not accept. It releases the lock.
func (s *socket) writeLocked(p []byte) (int, error) {
	if !s.mu.nonblocking && s.mu.broken == nil {
		left := s.mu.left // a response of TLS since the last settle
		s.mu.left = nil
		s.mu.Unlock()
		if len(left) == 0 {
			return s.Conn.Write(p)
		}
		n, err := s.Conn.Write(append(left, p...))
		return max(0, n-len(left)), err
	}
	defer s.mu.Unlock()
	switch {
	case s.mu.broken != nil:
		return 0, s.mu.broken
	case s.mu.settling, len(s.mu.left) > 0:
		return s.keepLocked(p, len(p))
	}
	n, err := s.now.WriteNow(p)
	if isTimeout(err) { // the deadline was for an earlier write that waited
		_ = s.SetWriteDeadline(time.Time{})
		n, err = s.now.WriteNow(p)
	}
	if err != nil && !errors.Is(err, syscall.EAGAIN) {
		s.mu.broken = err
		return 0, err
	}
	return s.keepLocked(p[n:], len(p))
}

// keepLocked keeps the rest of a write. size is the length of the whole write.
func (s *socket) keepLocked(rest []byte, size int) (int, error) {
	most := leftMax
	if s.mu.settling {
		most -= exchange.PieceSize
	}
	if len(s.mu.left)+len(rest) > most {
		s.mu.broken = errUnread
		return 0, errUnread
	}
	s.mu.left = append(s.mu.left, rest...)
	return size, nil
}

// settle writes the kept bytes within the deadline. Then it resets the deadline, because a
// nonblocking write would fail after the deadline.
func (s *socket) settle() error {
	for {
		left, err := s.take()
		if len(left) == 0 || err != nil {
			return err
		}
		if _, err := s.Conn.Write(left); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.mu.nonblocking, s.mu.settling, s.mu.left, s.mu.broken = false, false, nil, err
			return err
		}
	}
}

// take returns the kept bytes and removes them from the socket.
func (s *socket) take() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.mu.left
	s.mu.left = nil
	if s.mu.settling = len(left) > 0; !s.mu.settling {
		_ = s.SetWriteDeadline(time.Time{})
	}
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

// Read implements net.Conn.
func (s *socket) Read(p []byte) (n int, err error) {
	n, err = s.read(p)
	if count := s.reading.count; count != nil && !count(n) {
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
	more, err := s.readNow(p)
	if n += more; n > 0 {
		err = nil // the next read returns the error again
	}
	return n, err
}

// readNow reads the bytes that have arrived. If there are none, it fails as after a deadline.
func (s *socket) readNow(p []byte) (int, error) {
	n, err := s.now.ReadNow(p)
	if errors.Is(err, syscall.EAGAIN) {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}
