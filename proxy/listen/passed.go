package listen

import (
	"context"
	"io"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// passed is a body that is read in one place and written in another: one that is forwarded, or that
// was made before.
type passed struct {
	io.ReadCloser
	turns fair.Turns // nil for a body that lasts: nobody waits to write an event
}

// passed is the body of a response.
func (s *Server) passed(ctx context.Context, req *exchange.Request, resp *exchange.Response) passed {
	p := passed{ReadCloser: resp.Reader}
	if !resp.Lasts {
		p.turns = fair.NewTurns(ctx, s.slots, req.User())
	}
	return p
}

// copySize is how much is read and written at a time, in bytes.
const copySize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// WriteTo implements io.WriterTo.
func (p passed) WriteTo(w io.Writer) (written int64, err error) {
	if p.turns != nil {
		w = fair.InTurns(w, p.turns)
	}
	buffer := copyBuffers.Get().(*[copySize]byte)
	written, err = io.CopyBuffer(onlyWriter{w}, onlyReader{p.ReadCloser}, buffer[:])
	if err == nil { // else HTTP/2 may still hold the buffer
		copyBuffers.Put(buffer)
	}
	return written, err
}

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (passed) SupportsBodyWriteTo() bool { return true }

// onlyReader and onlyWriter have no other way to copy.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
