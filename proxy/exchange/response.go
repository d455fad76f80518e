package exchange

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"

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
	// Room is the part of the workspace that List takes until CloseBody; nil for none.
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

// copySize is how much is read and written at a time, in bytes.
const copySize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// WriteBody writes the list or the reader. A reader takes turns, except for a body that lasts: an
// event must not wait.
func (r *Response) WriteBody(ctx context.Context, w io.Writer, req *Request, slots *fair.Queue) (int64, error) {
	if r.List != nil {
		return fair.WriteLong(w, r.List, r.Length, r.Turns, r.Room)
	}
	if !r.Lasts {
		turns := fair.NewMeter(ctx, req, slots, false)
		w = fair.InTurns(w, &turns)
	}
	buffer := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r.Reader}, buffer[:])
}

// CloseBody is called when the list or the reader was written, or never will be.
func (r *Response) CloseBody() {
	if r.Reader != nil {
		_ = r.Reader.Close() // it was read to its end, or is not needed
	}
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
