package conn

import (
	"crypto/tls"
	"net"
	"time"
)

// handshakeTimeout bounds how long a client may take to agree on TLS.
const handshakeTimeout = 10 * time.Second

// Handshake agrees on TLS and returns the protocol that it agreed on. A connection without TLS
// has agreed on none.
func (c *Conn) Handshake() (protocol string, err error) {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		return "", nil
	}
	until := time.Now().Add(handshakeTimeout)
	if err := t.SetWriteDeadline(until); err != nil {
		return "", err
	}
	if !c.wait(until) {
		return "", net.ErrClosed
	}
	err = t.Handshake()
	c.waited()
	if err != nil {
		return "", err
	}
	state := t.ConnectionState()
	c.TLSState = &state
	return state.NegotiatedProtocol, t.SetDeadline(time.Time{})
}
