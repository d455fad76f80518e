// Package conntest has a socket in memory. It replaces a kernel's socket in tests that run in a
// synctest bubble.
package conntest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Socket is one end of a connection in memory. A write waits while the other end has too many
// unread bytes, and WriteNow and ReadNow never wait. Both ends may be closed for writing alone.
type Socket struct {
	in, out *direction
	// Remote is the address of the other end, or nil for a loopback address.
	Remote net.Addr
}

// Pipe returns both ends of a connection. Each direction holds up to size unread bytes.
func Pipe(size int) (client, server *Socket) {
	there, back := newDirection(size), newDirection(size)
	return &Socket{in: back, out: there}, &Socket{in: there, out: back}
}

// direction is the bytes that one end writes and the other end reads.
type direction struct {
	mu          sync.Mutex
	changed     sync.Cond
	size        int
	data        []byte
	wakeAt      int  // the number of bytes that end the wait of a read
	ended       bool // nothing more is written
	dropped     bool // nothing more is read
	read, write deadline
}

func newDirection(size int) *direction {
	d := &direction{size: size}
	d.changed.L = &d.mu
	return d
}

// deadline is a time after which calls fail. The direction's lock guards it.
type deadline struct {
	passed bool
	timer  *time.Timer
}

func (d *direction) setDeadline(of *deadline, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if of.timer != nil {
		of.timer.Stop()
		of.timer = nil
	}
	of.passed = !t.IsZero() && !time.Now().Before(t)
	if !t.IsZero() && !of.passed {
		var timer *time.Timer
		timer = time.AfterFunc(time.Until(t), func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if of.timer == timer {
				of.passed = true
				d.changed.Broadcast()
			}
		})
		of.timer = timer
	}
	d.changed.Broadcast()
}

// putLocked appends as many bytes of p as there is room for.
func (d *direction) putLocked(p []byte) (n int, err error) {
	switch {
	case d.ended:
		return 0, net.ErrClosed
	case d.dropped:
		return 0, syscall.EPIPE
	case d.write.passed:
		return 0, os.ErrDeadlineExceeded
	}
	n = min(len(p), d.size-len(d.data))
	d.data = append(d.data, p[:n]...)
	d.changed.Broadcast()
	return n, nil
}

// takeLocked moves bytes to p.
func (d *direction) takeLocked(p []byte) (n int, err error) {
	switch {
	case d.dropped:
		return 0, net.ErrClosed
	case d.read.passed:
		return 0, os.ErrDeadlineExceeded
	case len(d.data) == 0 && d.ended:
		return 0, io.EOF
	}
	n = copy(p, d.data)
	d.data = d.data[n:]
	d.changed.Broadcast()
	return n, nil
}

// Write implements net.Conn.
func (s *Socket) Write(p []byte) (n int, err error) {
	d := s.out
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		m, err := d.putLocked(p[n:])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
		d.changed.Wait()
	}
}

// WriteNow writes without waiting. If there is no room, it fails with EAGAIN.
func (s *Socket) WriteNow(p []byte) (int, error) {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	n, err := s.out.putLocked(p)
	return n, orAgain(n, err)
}

// Read implements net.Conn.
func (s *Socket) Read(p []byte) (int, error) {
	d := s.in
	d.mu.Lock()
	defer d.mu.Unlock()
	for waits := false; ; waits = true {
		asleep := waits && 0 < len(d.data) && len(d.data) < d.wakeAt && !d.ended && !d.dropped && !d.read.passed
		if !asleep {
			if n, err := d.takeLocked(p); n > 0 || err != nil || len(p) == 0 {
				return n, err
			}
		}
		d.changed.Wait()
	}
}

// WakeAt sets the number of bytes that end the wait of a read.
func (s *Socket) WakeAt(bytes int) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.in.wakeAt = bytes
}

// ReadNow reads without waiting. If no bytes have arrived, it fails with EAGAIN.
func (s *Socket) ReadNow(p []byte) (int, error) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	n, err := s.in.takeLocked(p)
	return n, orAgain(n, err)
}

func orAgain(n int, err error) error {
	if n == 0 && err == nil {
		return syscall.EAGAIN
	}
	return err
}

// CloseWrite ends the bytes of this end.
func (s *Socket) CloseWrite() error {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	s.out.ended = true
	s.out.changed.Broadcast()
	return nil
}

// Close implements net.Conn. The other end may still read what was written.
func (s *Socket) Close() error {
	_ = s.SetDeadline(time.Time{}) // stops the timers
	s.in.mu.Lock()
	s.in.dropped, s.in.data = true, nil
	s.in.changed.Broadcast()
	s.in.mu.Unlock()
	return s.CloseWrite()
}

// SetDeadline implements net.Conn.
func (s *Socket) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (s *Socket) SetReadDeadline(t time.Time) error {
	s.in.setDeadline(&s.in.read, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *Socket) SetWriteDeadline(t time.Time) error {
	s.out.setDeadline(&s.out.write, t)
	return nil
}

// LocalAddr implements net.Conn.
func (*Socket) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// RemoteAddr implements net.Conn.
func (s *Socket) RemoteAddr() net.Addr {
	if s.Remote != nil {
		return s.Remote
	}
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
}
