package listen

import (
	"bufio"
	"errors"
	"io"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

type requestBody struct {
	from    io.Reader
	client  *client
	chunked bool
	atEnd   atomic.Bool // from has returned io.EOF, so nobody reads from it again
}

// Read implements io.Reader. If the connection ends between two chunks, fasthttp treats the end as
// the last chunk.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.chunked && errors.Is(err, io.EOF) && b.client.ended.Load() {
		err = io.ErrUnexpectedEOF
	}
	b.atEnd.Store(errors.Is(err, io.EOF))
	return n, err
}

type bodyStream struct {
	server *Server
	req    *exchange.Request
	resp   *exchange.Response
	bytes  int64
	pieces bool // each piece must be written at once
}

func (*bodyStream) Read([]byte) (int, error) { panic("BUG: a body stream is written, not read") }

func (b *bodyStream) WriteTo(w io.Writer) (int64, error) {
	if buffered, ok := w.(*bufio.Writer); ok && b.pieces {
		w = flushed{buffered}
	}
	returned := false
	defer func() {
		if !returned { // fasthttp recovers from a panic, and does not call Close then
			_ = b.Close()
		}
	}()
	n, err := b.server.writeLong(w, b.req, b.resp)
	returned = true
	b.bytes += n
	return n, err
}

type flushed struct{ *bufio.Writer }

func (f flushed) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	return n, errors.Join(err, f.Flush())
}

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (*bodyStream) SupportsBodyWriteTo() bool { return true }

func (b *bodyStream) Close() error {
	b.resp.Close(b.bytes)
	return nil
}
