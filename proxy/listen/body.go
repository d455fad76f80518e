package listen

import (
	"io"

	"github.com/watchproxy/watchproxy/proxy/exchange"
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
	return b.resp.WriteBody(b.server.Serving, w, b.req, b.server.Slots)
}

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (*bodyStream) SupportsBodyWriteTo() bool { return true }

// Close implements io.Closer.
func (b *bodyStream) Close() error {
	b.resp.CloseBody()
	return nil
}
