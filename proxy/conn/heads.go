package conn

import (
	"errors"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Heads limits the memory of everything that clients have begun to send: TLS handshakes, heads of
// requests, and header blocks of HTTP/2. Unknown clients share that of strangers by network, and
// known clients share that of users. Bytes that clients leave unread are limited likewise, but
// those of known clients have memory of their own, because they may stay for hours.
type Heads struct{ Strangers, Users, Unread *fair.Pool }

const (
	// headFree is the number of bytes of each head that are not counted.
	headFree = 2 << 10
	// handshakeFree is the same for a handshake, and handshakeMost limits it: a resumed session may
	// have a chain of certificates of up to 16 KiB, and send it twice. TLS keeps its buffers while
	// the connection is open. They may be handshakeKept times as large as the handshake.
	handshakeFree, handshakeMost, handshakeKept = 4 << 10, 40 << 10, 3
)

// ErrHeads says that a connection ends because clients have begun to send too much.
var ErrHeads = errors.New("too many bytes of incomplete requests")

// headCount is the counted part of a connection's head or handshake.
type headCount struct {
	from *fair.Pool
	who  string
	size int64
}

func (h *headCount) end() {
	if h.size > 0 {
		h.from.Give(h.who, h.size)
		*h = headCount{}
	}
}

// handshake counts the bytes that a client sends while TLS shakes hands.
type handshake struct {
	account *Account
	read    int64
}

// grows returns false if there is no room for n more bytes.
func (h *handshake) grows(n int) bool {
	h.read += int64(n)
	kept := handshakeKept*(h.read-handshakeFree) + headFree
	return h.read <= handshakeMost && h.account.HeadGrows(kept)
}

// FrameReader reads for the framer of an HTTP/2 connection, and waits below TLS until the client is
// known. Beyond Free bytes, a header block, which may have several frames, counts as a head.
type FrameReader struct {
	Conn    *Conn
	Free    int64
	Refused bool  // there was no room
	read    int64 // bytes since the last FrameEnds
}

// Read implements io.Reader.
func (r *FrameReader) Read(p []byte) (n int, err error) {
	if r.Conn.Account.Known() {
		n, err = r.Conn.Read(p)
	} else {
		n, err = r.Conn.WaitBelowTLS(func() (int, error) { return r.Conn.Read(p) })
	}
	if r.read += int64(n); !r.Conn.Account.HeadGrows(r.read - r.Free) {
		r.Refused = true
		return 0, ErrHeads
	}
	return n, err
}

// FrameEnds says that a frame, or a header block, was read or broke off.
func (r *FrameReader) FrameEnds() {
	r.read = 0
	r.Conn.Account.HeadEnds()
}
