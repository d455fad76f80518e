package conn

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// flagsAt is the offset of the flags in a TCP header, and synFlag is the flag that opens a
// connection.
const flagsAt, synFlag = 13, 0x02

// refuseNew makes a listening socket ignore new clients, while it still completes the handshakes
// that have begun and passes on the connections in its backlog. Shutting down or closing a TCP
// socket would reset all these. So a filter drops the packets that open a connection. Their senders
// repeat them after a second. By then the socket is closed, and they are refused.
//
// A Unix socket refuses new clients after a shutdown, and keeps its backlog.
func refuseNew(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain == unix.AF_UNIX {
		return unix.Shutdown(fd, unix.SHUT_RD)
	}
	drop := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flagsAt},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: synFlag, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
}

// acceptNow accepts a connection without waiting.
func acceptNow(fd int) (net.Conn, error) {
	for {
		accepted, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			file := os.NewFile(uintptr(accepted), "client") //nolint:gosec // descriptors are not negative
			conn, err := net.FileConn(file)
			return conn, errors.Join(err, file.Close())
		case unix.EINTR, unix.ECONNABORTED: // there may be more
		default:
			return nil, err
		}
	}
}
