package listen

import (
	"context"
	"io"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// bodyStream is a list or a reader as fasthttp writes it.
type bodyStream struct {
	server *Server
	req    *exchange.Request
	resp   *exchange.Response
}

// Read implements io.Reader.
func (*bodyStream) Read([]byte) (int, error) { panic("BUG: a body stream is written, not read") }

// WriteTo implements io.WriterTo.
func (b *bodyStream) WriteTo(w io.Writer) (int64, error) {
	return b.server.writeBody(b.server.Serving, w, b.req, b.resp)
}

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (*bodyStream) SupportsBodyWriteTo() bool { return true }

// Close implements io.Closer.
func (b *bodyStream) Close() error {
	closeBody(b.resp)
	return nil
}

// closeBody is called when a list or a reader was written, or never will be.
func closeBody(resp *exchange.Response) {
	if resp.Reader != nil {
		_ = resp.Reader.Close() // it was read to its end, or is not needed
	}
	resp.CloseList()
}

// copySize is how much is read and written at a time, in bytes.
const copySize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// writeBody writes a response's list or reader. A reader takes turns, except for a body that lasts:
// an event must not wait.
func (s *Server) writeBody(ctx context.Context, w io.Writer, req *exchange.Request, resp *exchange.Response) (int64, error) {
	if resp.List != nil {
		return resp.WriteList(w)
	}
	if !resp.Lasts {
		turns := fair.NewMeter(ctx, req, s.Slots, false)
		w = fair.InTurns(w, &turns)
	}
	buffer := copyBuffers.Get().(*[copySize]byte)
	written, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{resp.Reader}, buffer[:])
	copyBuffers.Put(buffer)
	return written, err
}
