package exchange

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"sync"
)

// SmallBody limits what BufferSmall reads, and a reused buffer, in bytes. Upstream sends no length
// with a response above 2 KiB. Without BufferSmall, each piece that arrives would be a separate
// write to the client and would wake it again.
const SmallBody = 64 << 10

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// ErrLong means that a response is longer than the limit.
var ErrLong = errors.New("response is too long to be shared")

// BufferSmall reads a short response to its end.
func (r *Response) BufferSmall() {
	if r.Status != http.StatusNoContent && r.Status != http.StatusNotModified {
		_ = r.Buffer(SmallBody) // a longer response is written as it arrives
	}
}

// Buffer reads a response of up to limit bytes into memory. It returns [ErrLong] for a longer
// response and the error of a broken one. Both can still be read as before.
func (r *Response) Buffer(limit int64) error {
	from, ok := r.Body.(*Reader)
	if !ok {
		return nil
	}
	if from.Length > limit {
		return ErrLong
	}
	read, closing := buffers.Get().(*bytes.Buffer), from
	defer func() {
		if closing != nil { // after a panic no caller closes the response
			_ = closing.Close()
		}
		if read.Cap() <= SmallBody {
			read.Reset()
			buffers.Put(read)
		}
	}()
	_, err := read.ReadFrom(io.LimitReader(from, limit+1))
	body := bytes.Clone(read.Bytes())
	closing = nil
	if err != nil || int64(len(body)) > limit {
		rest := io.Reader(from.ReadCloser)
		if err != nil {
			rest = brokenReader{err}
		}
		from.ReadCloser = readCloser{io.MultiReader(bytes.NewReader(body), rest), from.ReadCloser}
		return cmp.Or(err, ErrLong)
	}
	_ = from.Close() // the body was read to its end
	r.Body = Bytes(body)
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }
