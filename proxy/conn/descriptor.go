package conn

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
)

// immediate reads and writes without waiting. If nothing can be read or written, it fails with
// EAGAIN. A read that waits goes on when the number of bytes in WakeAt has arrived.
type immediate interface {
	ReadNow(p []byte) (int, error)
	WriteNow(p []byte) (int, error)
	WakeAt(bytes int)
}

// immediateOf returns nil if c can only wait.
func immediateOf(c net.Conn) immediate {
	if now, ok := c.(immediate); ok {
		return now
	}
	file, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil
	}
	if runtime.GOOS == "linux" {
		// Connections do not inherit this option. Sockets other than TCP do not support it.
		_ = raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowWater, unsentMax)
		})
	}
	return &descriptor{raw: raw}
}

type descriptor struct {
	raw syscall.RawConn
	// The arguments and results of a write. A closure for each write would cost an allocation.
	write struct {
		try func(fd uintptr) (done bool)
		p   []byte
		n   int
		err error
	}
}

// WriteNow implements immediate.
func (d *descriptor) WriteNow(p []byte) (int, error) {
	w := &d.write
	if w.try == nil {
		w.try = d.tryWrite
	}
	w.p, w.n = p, 0
	err := d.raw.Write(w.try)
	w.p = nil
	if err == nil {
		err = w.err
	}
	return max(w.n, 0), err
}

func (d *descriptor) tryWrite(fd uintptr) (done bool) {
	w := &d.write
	for {
		w.n, w.err = syscall.Write(int(fd), w.p)
		if w.err != syscall.EINTR { //nolint:errorlint // as package syscall returns it
			return true
		}
	}
}

// ReadNow implements immediate.
func (d *descriptor) ReadNow(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	waited := d.raw.Read(func(fd uintptr) (done bool) {
		for {
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				return true
			}
		}
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// WakeAt implements immediate. If the kernel refuses, it goes on to wake the reader for each byte.
func (d *descriptor) WakeAt(bytes int) {
	if runtime.GOOS != "linux" {
		return // a read that does not wait would fail, too
	}
	_ = d.raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
	})
}
