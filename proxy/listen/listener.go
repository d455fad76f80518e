package listen

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

// listener makes every accepted connection a *conn. It outlives errors that pass, and closes
// what is beyond its bounds.
type listener struct {
	net.Listener
	tls     *tls.Config // nil for none
	open    *connSet
	limits  func() exchange.Limits
	ending  <-chan struct{} // closed when nothing more is accepted
	refused func(reason string)
	log     *zap.Logger

	failures int       // since a connection was accepted
	failed   time.Time // the last of all
}

// spell is how long after a failure another one is still part of the same spell.
const spell = time.Minute

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			if !passes(err) || !l.pause(err) {
				return nil, err
			}
			continue
		}
		l.failures = 0
		bare := newSocket(accepted)
		bare.limitUnsent()
		c := &conn{Conn: bare, socket: bare}
		most, all := l.limits().Crowd()
		open, ok := l.open.add(c, all)
		if !ok {
			l.refused("limit")
			_ = accepted.Close() // it was not used
			continue
		}
		c.crowded.Store(open > most)
		if l.tls != nil {
			c.Conn = tls.Server(bare, l.tls)
		}
		return c, nil
	}
}

// passes tells whether accept may succeed later, although nothing is done about the error.
func passes(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, // until something is closed
		syscall.ECONNABORTED, syscall.EINTR, syscall.EPROTO, syscall.EPERM, // this connection alone
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENOPROTOOPT,
	}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// pause waits before the next attempt, unless the server ends. A spell of failures is logged
// once, as there may be many.
func (l *listener) pause(err error) bool {
	const first, longest = 5 * time.Millisecond, time.Second
	if time.Since(l.failed) > spell {
		l.log.Warn("connections cannot be accepted for now", zap.Error(err))
	}
	l.failed = time.Now()
	wait := longest
	if doublings := 8; l.failures < doublings {
		wait = min(longest, first<<l.failures)
	}
	l.failures++
	l.refused("error")
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ending:
		return false
	}
}
