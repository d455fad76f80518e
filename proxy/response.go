package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
)

// response is what a handler answers. At most one of the bodies is set.
type response struct {
	status int
	header http.Header
	// source is where the answer came from, for the metrics.
	source source

	bytes  []byte                                    // a small body
	list   io.WriterTo                               // a body of length bytes
	reader io.ReadCloser                             // a body of length bytes, or -1 until it ends
	length int64                                     // of list and reader
	stream func(ctx context.Context, w *chunkWriter) // an endless body; ctx ends when the client leaves
	tunnel func(client net.Conn, buffered io.Reader) // takes the connection over after the header
	lasts  bool                                      // the body may take as long as it likes
	close  bool                                      // the connection is of no further use
	// abandon is called instead of stream or tunnel if the connection is lost
	// before they can begin.
	abandon func()
}

func newResponse(status int, from source) *response {
	return &response{status: status, header: http.Header{}, source: from}
}

type source string

const (
	fromCache    source = "cache"
	fromUpstream source = "upstream"
	fromProxy    source = "proxy" // refused or failed here
)
