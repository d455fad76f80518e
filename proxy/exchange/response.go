package exchange

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/google/uuid"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Response is what a handler answers. At most one of the bodies is set.
type Response struct {
	Status int
	// told is the status that metrics have instead, if it is in the body: that of a watch
	// which is accepted and consists of an ERROR.
	Told   int
	Header http.Header
	// source is where the answer came from, for the metrics.
	Source Source

	Bytes  []byte        // a small body
	List   io.WriterTo   // a body of length bytes, or -1 until it ends
	Reader io.ReadCloser // a body of length bytes, or -1 until it ends
	Length int64         // of list and reader
	Stream Stream        // an endless body
	Tunnel Tunnel        // what follows the header, instead of HTTP
	Lasts  bool          // the body may take as long as it likes
	Shares *fair.Shares  // of the workspace, if bytes takes some; nil for none
	Turns  fair.Turns    // which the writes of list take; nil for none
	Close  bool          // the connection is of no further use
	// room is what the list takes until it was written, or never will be; nil for none.
	Room *fair.Room
}

// NewResponse returns a response without a body.
func NewResponse(status int, from Source) *Response {
	return &Response{Status: status, Header: http.Header{}, Source: from}
}

// Stream is an endless body. Either of its methods is called, once.
type Stream interface {
	// Run writes it in the caller's goroutine, until it ends or ctx does, as the client has left.
	Run(ctx context.Context, out *ChunkWriter)
	// Abandon is called if the connection is lost before it can begin.
	Abandon()
}

// Tunnel joins a client with upstream after both left HTTP. Either of its methods is called, once.
type Tunnel interface {
	// Join takes the connection over. What was read ahead of it is in buffered.
	Join(client net.Conn, buffered io.Reader)
	// Abandon is called if the connection is lost before.
	Abandon()
}

// Source is where an answer came from.
type Source string

// The sources.
const (
	FromCache    Source = "cache"
	FromUpstream Source = "upstream"
	FromProxy    Source = "proxy" // refused or failed here
)

// LetGo takes so many off those who still hold the response's part of the workspace.
func (r *Response) LetGo(n int) {
	if r != nil {
		r.Shares.LetGo(n)
	}
}

// WriteList writes the list.
func (r *Response) WriteList(w io.Writer) (int64, error) {
	return fair.WriteLong(w, r.List, r.Length, r.Turns, r.Room)
}

// CloseList is called when a list was written, or never will be.
func (r *Response) CloseList() {
	if r.Room != nil {
		r.Room.GiveBack()
	}
}

// Stamp sets the headers that each of kube-apiserver's answers has.
func (r *Request) Stamp(resp *Response) {
	resp.Header.Set("Cache-Control", "no-cache, private")
	resp.Header.Set("Audit-Id", r.AuditID())
}

// AuditID is the client's, or a new one.
func (r *Request) AuditID() string {
	if id := r.Header.Get("Audit-Id"); id != "" {
		return id
	}
	return uuid.NewString()
}
