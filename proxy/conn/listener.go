package conn

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Listener makes every accepted connection a *Conn. It survives transient errors and closes
// connections beyond its limits.
type Listener struct {
	net.Listener
	TLS     *tls.Config // nil for none
	Open    *Set
	Limits  func() exchange.Limits
	Ending  <-chan struct{} // closed when nothing more is accepted
	Refused func(reason string)
	Log     *zap.Logger

	failures int       // since the last accepted connection
	failed   time.Time // time of the last failure
}

// Failures less than a spell apart are logged as one.
const spell = time.Minute

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			if !isTransient(err) || !l.pause(err) {
				return nil, err
			}
			continue
		}
		l.failures = 0
		c := New(accepted)
		most, all := l.Limits().Crowd()
		open, ok := l.Open.add(c, all)
		if !ok {
			l.Refused("limit")
			_ = accepted.Close() // it was not used
			continue
		}
		c.crowded = open > most
		if l.TLS != nil {
			c.Conn = tls.Server(c.socket, l.TLS)
		}
		return c, nil
	}
}

// isTransient tells whether accept may succeed later without any action.
func isTransient(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, // these last until something is closed
		syscall.ECONNABORTED, syscall.EINTR, syscall.EPROTO, syscall.EPERM, // these concern only this connection
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENOPROTOOPT,
	}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// pause waits before the next attempt, unless the server ends. It logs only the first of several
// failures in a row.
func (l *Listener) pause(err error) bool {
	const first, doublings, longest = 5 * time.Millisecond, 8, time.Second
	if time.Since(l.failed) > spell {
		l.Log.Warn("connections cannot be accepted for now", zap.Error(err))
	}
	l.failed = time.Now()
	wait := min(longest, first<<min(l.failures, doublings))
	l.failures++
	l.Refused("error")
	select {
	case <-time.After(wait):
		return true
	case <-l.Ending:
		return false
	}
}
