package proxy

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// response is what a handler answers. At most one of the bodies is set.
type response struct {
	status int
	// told is the status that metrics have instead, if it is in the body: that of a watch
	// which is accepted and consists of an ERROR.
	told   int
	header http.Header
	// source is where the answer came from, for the metrics.
	source source

	bytes  []byte                                    // a small body
	list   io.WriterTo                               // a body of length bytes, or -1 until it ends
	reader io.ReadCloser                             // a body of length bytes, or -1 until it ends
	length int64                                     // of list and reader
	stream func(ctx context.Context, w *chunkWriter) // an endless body; ctx ends when the client leaves
	watch  *watching                                 // another one, which a pump may write
	tunnel func(client net.Conn, buffered io.Reader) // takes the connection over after the header
	lasts  bool                                      // the body may take as long as it likes
	shares *fair.Shares                              // of the workspace, if bytes takes some; nil for none
	turns  fair.Turns                                // which the writes of list take; nil for none
	close  bool                                      // the connection is of no further use
	// abandon is called instead of stream, watch or tunnel if the connection is lost
	// before they can begin.
	abandon func()
	// room is what the list takes until it was written, or never will be; nil for none.
	room *fair.Room
}

func newResponse(status int, from source) *response {
	return &response{status: status, header: http.Header{}, source: from}
}

// run writes an endless body in the caller's goroutine.
func (r *response) run(ctx context.Context, out *chunkWriter) {
	if r.watch != nil {
		r.watch.run(ctx, out)
	} else {
		r.stream(ctx, out)
	}
}

type source string

const (
	fromCache    source = "cache"
	fromUpstream source = "upstream"
	fromProxy    source = "proxy" // refused or failed here
)

// letGo takes so many off those who still hold the response's part of the workspace.
func (r *response) letGo(n int) {
	if r != nil {
		r.shares.LetGo(n)
	}
}

// writeList writes the list.
func (r *response) writeList(w io.Writer) (int64, error) {
	return fair.WriteLong(w, r.list, r.length, r.turns, r.room)
}

// closeList is called when a list was written, or never will be.
func (r *response) closeList() {
	if r.room != nil {
		r.room.GiveBack()
	}
}
