package exchange

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/google/uuid"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Response is a handler's answer. At most one of its bodies is set.
type Response struct {
	Status int
	// Told is the status for metrics if only the body has the status: a watch of one ERROR is
	// accepted with 200.
	Told   int
	Header http.Header
	Source Source

	Bytes  []byte        // a small body
	List   io.WriterTo   // a body of length bytes, or -1 until it ends
	Reader io.ReadCloser // a body of length bytes, or -1 until it ends
	Length int64         // of list and reader
	Stream Stream        // an endless body
	Tunnel Tunnel        // what follows the header, instead of HTTP
	Lasts  bool          // the body has no time limit
	Shares *fair.Shares  // the part of the workspace that Bytes takes; nil for none
	Turns  *fair.Meter   // taken by the writes of List; nil for none
	Close  bool          // the connection must close
	// Room is the part of the workspace that List takes until CloseList; nil for none.
	Room *fair.Room
}

// NewResponse returns a response without a body.
func NewResponse(status int, from Source) *Response {
	return &Response{Status: status, Header: http.Header{}, Source: from}
}

// Stream is an endless body. One of its methods is called, once.
type Stream interface {
	// Run writes the body in the caller's goroutine, until the body ends or the client has left. A
	// client that leaves ends ctx.
	Run(ctx context.Context, out *ChunkWriter)
	// Abandon is called instead if the connection is lost.
	Abandon()
}

// Tunnel joins a client with upstream after both left HTTP. One of its methods is called, once.
type Tunnel interface {
	// Join takes the connection over. Buffered holds the bytes that were read ahead.
	Join(client net.Conn, buffered io.Reader)
	// Abandon is called instead if the connection is lost.
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

// LetGo subtracts n from the holders of the response's part of the workspace.
func (r *Response) LetGo(n int) {
	if r != nil {
		r.Shares.Release(n)
	}
}

// WriteList writes the list.
func (r *Response) WriteList(w io.Writer) (int64, error) {
	return fair.WriteLong(w, r.List, r.Length, r.Turns, r.Room)
}

// CloseList is called after a list was written or given up.
func (r *Response) CloseList() {
	if r.Room != nil {
		r.Room.GiveBack()
	}
}

// Stamp sets the headers of all of kube-apiserver's answers.
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
