package conn

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// socket is the TCP connection below TLS. While it is nonblocking, a write does not wait for the
// client: what the kernel does not take at once is kept for settle. Two goroutines may write,
// for TLS now and then answers what it reads, with its own lock held: if that could block,
// so would whoever writes next. Hence a socket is nonblocking for as long as a pump writes to it.
//
// A pump writes one piece at most, and nothing more before that is settled. What is kept beside
// it are answers of TLS. A client that makes there be more of them is cut.
type socket struct {
	net.Conn
	raw     syscall.RawConn // nil if there is no file descriptor
	reading reading
	mu      struct {
		sync.Mutex
		nonblocking bool
		settling    bool   // somebody is writing what was left
		left        []byte // what was written and not taken; up to leftMax
		broken      error  // a write that failed may have written a part

		// An nonblocking write.
		try func(fd uintptr) (done bool)
		p   []byte
		n   int
		err error
	}
}

func newSocket(c net.Conn) *socket {
	s := &socket{Conn: c}
	if file, ok := c.(syscall.Conn); ok {
		if raw, err := file.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	return s
}

// startNonblocking has writes not wait.
func (s *socket) startNonblocking() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nonblocking = true
	if s.mu.try == nil {
		s.mu.try = s.tryLocked
	}
}

// isNonblocking tells whether writes do not wait.
func (s *socket) isNonblocking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.nonblocking
}

// unsettled tells whether something is left.
func (s *socket) unsettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.left) > 0
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	if !s.mu.nonblocking && s.mu.broken == nil {
		s.mu.Unlock()
		return s.Conn.Write(p)
	}
	defer s.mu.Unlock()
	return s.writeLocked(p)
}

func (s *socket) writeLocked(p []byte) (int, error) {
	switch {
	case s.mu.broken != nil:
		return 0, s.mu.broken
	case s.mu.settling, len(s.mu.left) > 0:
		return s.keepLocked(p, len(p))
	}
	s.mu.p = p
	err := s.raw.Write(s.mu.try)
	s.mu.p = nil
	if err == nil && !errors.Is(s.mu.err, syscall.EAGAIN) {
		err = s.mu.err
	}
	if err != nil {
		s.mu.broken = err
		return 0, err
	}
	return s.keepLocked(p[max(s.mu.n, 0):], len(p))
}

// leftMax bounds what is left, in bytes: a piece as TLS writes it and a bookmark, and as much
// again of answers. While what was left is being written, only the answers are added.
const leftMax = 2 * exchange.PieceSize

// keepLocked keeps the rest of a write of size bytes.
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

// tryLocked is one write by the file descriptor, which does not block.
func (s *socket) tryLocked(fd uintptr) (done bool) {
	for {
		if s.mu.n, s.mu.err = syscall.Write(int(fd), s.mu.p); !errors.Is(s.mu.err, syscall.EINTR) {
			return true // whatever came of it
		}
	}
}

// errUnread says that a client had too much written that it did not read.
var errUnread = errors.New("the client does not read the answers to what it asks")

// settle writes what is left, for as long as the deadline allows, which it then takes back:
// once that is over, an nonblocking write would fail.
func (s *socket) settle() error {
	for {
		left, err := s.take()
		if len(left) == 0 || err != nil {
			return err
		}
		if _, err := s.Conn.Write(left); err != nil {
			return s.broke(err)
		}
	}
}

// take returns what is left.
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

// stopNonblocking makes the socket one that waits for its client again.
func (s *socket) stopNonblocking() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nonblocking = false
}

func (s *socket) broke(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nonblocking, s.mu.settling, s.mu.left, s.mu.broken = false, false, nil, err
	return err
}

// CloseWrite tells the client that nothing more comes.
func (s *socket) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
