package proxy

import (
	"errors"
	"io"
	"sync/atomic"
)

// body is a request's body. It knows whether it was read to its end: if not,
// the connection is of no further use, as fasthttp would take the rest of the
// body for the next request.
type body struct {
	from   io.Reader
	conn   *conn
	length int64 // in bytes, -1 if unknown
	read   int64
	ended  atomic.Bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.read += int64(n)
	if b.length < 0 && errors.Is(err, io.EOF) && b.conn.eof.Load() {
		// fasthttp takes the client's end between two chunks for the last chunk.
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.EOF) || b.read == b.length {
		b.ended.Store(true)
	}
	return n, err
}
