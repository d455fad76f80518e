package h2

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// heard is the request as a handler receives it.
type heard struct {
	method, target, host string
	header               http.Header
	body                 string
	unread               bool // reading the body failed
	ended                bool // the context ended when the client canceled
}

// seen is the response as a client receives it.
type seen struct {
	status   string
	informed string
	header   http.Header
	body     string
	end      string
}

func digest(p []byte) string { return fmt.Sprintf("%d bytes, %.4x", len(p), sha256.Sum256(p)) }

// hear reads the request in the same way behind both servers.
func (s *shape) hear(ctx context.Context, h *heard, body *exchange.Body) {
	close(s.started)
	switch {
	case body == nil && s.reads < 0:
		h.body = digest(nil)
	case s.reads != 0:
		var got []byte
		var err error
		if s.reads < 0 {
			got, err = io.ReadAll(body)
		} else {
			got = make([]byte, s.reads)
			_, err = io.ReadFull(body, got)
		}
		h.body, h.unread = digest(got), err != nil
	}
	close(s.read)
	if h.header = maps.Clone(h.header); s.cancels && s.kind == inBytes {
		h.wait(ctx)
	}
}

func (h *heard) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
		h.ended = true
	case <-time.After(patience):
	}
}

// respond answers through exchange.Response.
func (s *shape) respond(ctx context.Context, h *heard) *exchange.Response {
	resp := exchange.NewResponse(s.status, exchange.FromProxy)
	maps.Copy(resp.Header, s.fields)
	length := int64(-1)
	if s.kind.known() {
		length = int64(len(s.answer))
	}
	var pieces io.Reader = bytes.NewReader(nil)
	for piece := range slices.Chunk(s.answer, len(s.answer)/s.pieces+1) {
		pieces = io.MultiReader(pieces, bytes.NewReader(piece))
	}
	switch s.kind {
	case inBytes:
		resp.Body = exchange.Bytes(s.answer)
	case inList, inEndlessList:
		resp.Body = &fair.List{Content: pieces.(io.WriterTo), Length: length}
	case inReader, inEndlessReader:
		body := io.MultiReader(pieces, readerFunc(func() error {
			if s.cancels {
				h.wait(ctx)
			}
			if s.cancels || s.fails {
				return errors.New("broken")
			}
			return io.EOF
		}))
		resp.Body = &exchange.Reader{ReadCloser: io.NopCloser(body), Length: length}
	case inStream:
		resp.Body = pieceStream{pieces}
	}
	return resp
}

type readerFunc func() error

// Read implements io.Reader.
func (f readerFunc) Read([]byte) (int, error) { return 0, f() }

type pieceStream struct{ from io.Reader }

// Run implements exchange.Stream.
func (s pieceStream) Run(_ context.Context, out *exchange.ChunkWriter) {
	var scratch [1000]byte
	for {
		n, err := s.from.Read(scratch[:])
		b := out.Pending()
		if *b = append(*b, scratch[:n]...); out.Flush() != nil || err != nil {
			return
		}
	}
}

// Abandon implements exchange.Stream.
func (pieceStream) Abandon() {}

// Reason implements exchange.Stream.
func (pieceStream) Reason() string { return "" }
