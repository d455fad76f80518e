package exchange

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// Gather reads a short answer to its end, so that it is written at once.
func (r *Response) Gather(method string) {
	if method != http.MethodHead && r.Status != http.StatusNoContent && r.Status != http.StatusNotModified {
		_ = r.Buffer(GatherMax) // what is too long is written as it comes
	}
}

// Buffer reads a response of up to limit bytes into memory. A longer one, or one
// that breaks, can still be read as before.
func (r *Response) Buffer(limit int64) error {
	if r.Reader == nil {
		return nil
	}
	if r.Length > limit {
		return errLong
	}
	read := gathered.Get().(*bytes.Buffer)
	defer letGo(read)
	_, err := read.ReadFrom(io.LimitReader(r.Reader, limit+1))
	body := bytes.Clone(read.Bytes())
	if err != nil || int64(len(body)) > limit {
		rest := io.Reader(r.Reader)
		if err != nil {
			rest = brokenReader{err}
		}
		r.Reader = readCloser{io.MultiReader(bytes.NewReader(body), rest), r.Reader}
		return errLong
	}
	_ = r.Reader.Close() // read to its end
	r.Reader, r.Bytes = nil, body
	return nil
}

// gathered are buffers for answers whose length upstream does not tell.
var gathered = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func letGo(b *bytes.Buffer) {
	if b.Cap() <= gatheredKeep {
		b.Reset()
		gathered.Put(b)
	}
}

type readCloser struct {
	io.Reader
	io.Closer
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

var errLong = errors.New("answer is too long to be shared")

// GatherMax bounds what is read of a forwarded answer before the first of it is written, in bytes. Upstream does
// not tell the length of what takes it more than 2 KiB, and writes it in one go: piece by piece each would be a write of
// its own here, and wake the client up anew.
const GatherMax = 64 << 10

// Nobody is a client that never leaves.
type Nobody struct{}

// WhenGone implements Client.
func (Nobody) WhenGone(context.CancelFunc) (stop func()) { return func() {} }

// Interrupt implements Client.
func (Nobody) Interrupt() {}

// gatheredKeep is how large a buffer may be to be used again, in bytes.
const gatheredKeep = 64 << 10
