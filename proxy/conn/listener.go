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
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Listener wraps each accepted connection in a *Conn. It survives transient errors and closes
// connections beyond the limits.
type Listener struct {
	net.Listener
	TLS     *tls.Config // nil for none
	Open    *Set
	Heads   *Heads
	Ending  <-chan struct{} // closed when the listener must stop accepting
	Metrics *metrics.Metrics
	Log     *zap.Logger

	failures int       // since the last accepted connection
	failed   time.Time // time of the last failure
	refused  time.Time // time of the last refusal
}

// spell is the time within which failures are logged only once. The same applies to refusals.
const spell = time.Minute

// Accept waits for the next connection, which Admit must allow before it is served.
func (l *Listener) Accept() (*Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err == nil {
			l.failures = 0
			c := New(accepted)
			c.Account.heads = l.Heads
			return c, nil
		}
		if !isTransient(err) || !l.pause(err) {
			return nil, err
		}
	}
}

// Admit reports whether the limits allow to serve a connection, and closes it if they do not.
func (l *Listener) Admit(c *Conn, limits exchange.Limits) bool {
	most, all := limits.Crowd()
	open, evicted, ok := l.Open.add(c, most, all)
	if evicted != nil {
		l.Metrics.ConnectionRefused("limit")
		_ = evicted.socket.Close() // below TLS, because TLS would wait for a running write
	}
	if !ok {
		l.Metrics.ConnectionRefused("limit")
		if time.Since(l.refused) > spell {
			l.Log.Warn("connections beyond the limit are refused", zap.Int("limit", all))
		}
		l.refused = time.Now()
		_ = c.socket.Close() // the connection was not used
		return false
	}
	c.crowded = open > most
	if l.TLS != nil {
		c.Conn = tls.Server(c.socket, l.TLS)
	}
	return true
}

// Drain makes Accept fail after d: until then, clients may not have noticed that they should
// connect elsewhere. It closes a listener without deadlines at once.
func (l *Listener) Drain(d time.Duration) error {
	if limited, ok := l.Listener.(interface{ SetDeadline(t time.Time) error }); ok {
		return limited.SetDeadline(time.Now().Add(d))
	}
	return l.Close()
}

// isTransient reports whether Accept may succeed later without any action.
func isTransient(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		// These errors last until something is closed.
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		// These errors concern only this connection.
		syscall.ECONNABORTED, syscall.EINTR, syscall.EPROTO, syscall.EPERM,
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
		syscall.ENOPROTOOPT,
	}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// pause waits before the next attempt. It returns false if the server ends. Of several failures in
// a row, it logs only the first.
func (l *Listener) pause(err error) bool {
	const first, doublings, longest = 5 * time.Millisecond, 8, time.Second
	if time.Since(l.failed) > spell {
		l.Log.Warn("connections cannot be accepted for now", zap.Error(err))
	}
	l.failed = time.Now()
	wait := min(longest, first<<min(l.failures, doublings))
	l.failures++
	l.Metrics.ConnectionRefused("error")
	select {
	case <-time.After(wait):
		return true
	case <-l.Ending:
		return false
	}
}
