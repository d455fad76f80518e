package conn

import (
	"syscall"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// unsentMax is how much the kernel keeps of what is written to a client and not sent yet, in bytes:
	// two pieces. Without a bound it is 4 MiB of the container's memory for each client that does not
	// read, and as much work before a write waits.
	unsentMax = 2 * fair.WriteSize
	// tcpNotSentLowWater is TCP_NOTSENT_LOWAT, which package syscall lacks.
	tcpNotSentLowWater = 25
)

// limitUnsent bounds what the kernel keeps. Connections do not inherit it from their listener.
func (s *socket) limitUnsent() {
	if s.raw == nil {
		return
	}
	_ = s.raw.Control(func(fd uintptr) { // a socket that is none of TCP goes on without
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowWater, unsentMax)
	})
}
