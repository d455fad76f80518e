package conn

import (
	"io"
	"os"
	"sync"
	"syscall"
)

// reading is what a socket's reads have apart from its connection. A goroutine that waits in a
// read needs a buffer and, in TLS, a large stack. So a connection that may be silent for long
// waits for one byte below TLS, and reads what has come without waiting then. Its fields belong
// to the goroutine that reads.
type reading struct {
	first  [1]byte
	peeked bool // first was read and not given to the reader
	now    bool // reads do not wait: they fail as at a deadline
}

// await waits until something can be read.
func (s *socket) await() error {
	if s.reading.peeked {
		return nil
	}
	n, err := s.Conn.Read(s.reading.first[:])
	if s.reading.peeked = n > 0; s.reading.peeked {
		return nil
	}
	return err
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (n int, err error) {
	if s.reading.peeked && len(p) > 0 {
		s.reading.peeked = false
		p[0] = s.reading.first[0]
		n, p = 1, p[1:]
		if !s.reading.now {
			return n, nil
		}
	}
	if !s.reading.now {
		return s.Conn.Read(p)
	}
	more, err := s.readNow(p)
	if n += more; n > 0 {
		err = nil // the next read has it again
	}
	return n, err
}

// readNow reads what has come.
func (s *socket) readNow(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	waited := s.raw.Read(func(fd uintptr) (done bool) {
		for {
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				return true
			}
		}
	})
	switch {
	case waited != nil:
		return 0, waited
	case err == syscall.EAGAIN:
		return 0, os.ErrDeadlineExceeded
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// pieces are buffers for what has come.
var pieces = sync.Pool{New: func() any { return new([readSize]byte) }}

// readSize is how much is read at a time, in bytes.
const readSize = 4 << 10

// readPiece appends what has come to what was read ahead.
func (c *Conn) readPiece() (int, error) {
	piece := pieces.Get().(*[readSize]byte)
	defer pieces.Put(piece)
	n, err := c.Conn.Read(piece[:])
	c.ahead = append(c.ahead, piece[:n]...)
	return n, err
}

// Later calls read until something has come. Meanwhile it waits below TLS, if there is a file
// descriptor to ask.
func (c *Conn) Later(read func() (int, error)) (int, error) {
	for c.socket != nil && c.socket.raw != nil {
		c.socket.reading.now = true
		n, err := read()
		c.socket.reading.now = false
		if n > 0 || !isTimeout(err) {
			return n, err
		}
		if err := c.socket.await(); err != nil {
			return 0, err
		}
	}
	return read()
}
