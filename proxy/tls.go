package proxy

import (
	"crypto/tls"
	"time"
)

// handshakeTimeout bounds how long a client may take to agree on TLS.
const handshakeTimeout = 10 * time.Second

// Handshake lets fasthttp find out which protocol TLS agreed on. A connection
// without TLS has agreed on none.
func (c *conn) Handshake() error {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	if err := t.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if err := t.Handshake(); err != nil {
		return err
	}
	state := t.ConnectionState()
	c.state = &state
	return t.SetDeadline(time.Time{})
}

// ConnectionState is that of TLS.
func (c *conn) ConnectionState() tls.ConnectionState {
	if t, ok := c.Conn.(*tls.Conn); ok {
		return t.ConnectionState()
	}
	return tls.ConnectionState{}
}
