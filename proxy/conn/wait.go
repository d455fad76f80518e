package conn

import "time"

// WaitBelowTLS calls read until it returns bytes or fails. If the socket has a file descriptor, the
// wait is below TLS.
func (c *Conn) WaitBelowTLS(read func() (int, error)) (int, error) {
	for c.socket.now != nil {
		c.socket.reading.now = true
		n, err := read()
		c.socket.reading.now = false
		if n > 0 || !isTimeout(err) {
			return n, err
		}
		if err := c.socket.await(); err != nil {
			return 0, err
		}
	}
	return read()
}

// Wait sets the deadline for the first byte of a request, which a drain may bring forward. first is
// true for the first request of a connection.
func (c *Conn) Wait(until time.Time, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waiting, c.mu.first = until, first
	c.limitLocked()
}

// Waited must be called after the wait for a request.
func (c *Conn) Waited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waiting = time.Time{}
}

func (c *Conn) drain(d *Drain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.drain = d
	if !c.mu.waiting.IsZero() {
		c.limitLocked()
	}
}

func (c *Conn) limitLocked() {
	until := c.mu.waiting
	if d := c.mu.drain; d != nil {
		limit := d.First
		if !c.mu.first {
			limit = time.Now().Add(d.Next)
		}
		if limit.Before(until) {
			until = limit
		}
	}
	_ = c.SetReadDeadline(until) // reads of a broken connection fail anyway
}
