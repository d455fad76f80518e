package conn

import (
	"errors"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Heads limits the memory of everything that clients have begun to send: TLS handshakes, heads of
// requests, and header blocks of HTTP/2. Unknown clients share one part by address, and known
// clients share another part by user. Each client may hold no more of its part than stays free. So
// unknown clients cannot block known clients, and a few clients cannot block all others.
type Heads struct{ unknown, known *fair.Pool }

const (
	// headFree is the number of bytes of each head that are not counted. handshakeFree is the same
	// for a handshake.
	headFree, handshakeFree = 2 << 10, 8 << 10
	// headsMax limits the counted bytes of each part. This is enough for 256 heads of the maximum
	// size, and for thousands of ordinary heads.
	headsMax = 16 << 20
)

// NewHeads returns empty Heads.
func NewHeads() *Heads {
	return &Heads{fair.NewPool(headsMax, true, 0), fair.NewPool(headsMax, true, 0)}
}

// ErrHeads says that a connection ends because clients have begun to send too much.
var ErrHeads = errors.New("too many bytes of incomplete requests")

// headCount is the counted part of a connection's head.
type headCount struct {
	from *fair.Pool
	who  string
	size int64
}

// HeadGrows counts a head of size bytes. It returns false if there is no room for the head.
func (c *Conn) HeadGrows(size int64) bool {
	h := &c.head
	more := size - headFree - h.size
	if c.heads == nil || more <= 0 {
		return true
	}
	if h.size == 0 {
		h.from, h.who = c.heads.of(c)
	}
	if !h.from.Try(fair.Claim{User: h.who, Size: more}) {
		return false
	}
	h.size += more
	return true
}

// HeadEnds says that a head is complete, or that the connection ends.
func (c *Conn) HeadEnds() {
	if c.head.size > 0 {
		c.head.from.Give(c.head.who, c.head.size)
		c.head = headCount{}
	}
}

// of returns the part that counts a connection's head, and the client.
func (h *Heads) of(c *Conn) (part *fair.Pool, who string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.counted != nil {
		return h.known, c.mu.user
	}
	return h.unknown, access.Network(c.RemoteAddr().String())
}
