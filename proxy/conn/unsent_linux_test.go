//go:build verify

package conn

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// For a client that does not read, the kernel keeps only a few pieces, not megabytes.
func TestUnsentIsLimited(t *testing.T) {
	const received, most = 64 << 10, 1 << 20 // the kernel doubles the value
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, received)
		}), err)
	}}
	client, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server := newSocket(accepted)
	defer server.Close()
	kept, piece := 0, make([]byte, exchange.PieceSize)
	for err == nil && kept <= most {
		if err = server.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		var n int
		n, err = server.Write(piece)
		kept += n
	}
	if kept > most || kept < received {
		t.Errorf("%d KiB are kept, most is %d", kept>>10, most>>10)
	}
}
