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
	// Told is the status for metrics if it differs from Status. For example, a watch that consists
	// of one ERROR event has Status 200.
	Told   int
	Header http.Header
	Source Source
	Why    string // why upstream answered, for metrics

	Bytes  []byte        // a small body
	List   io.WriterTo   // a body of Length bytes; -1 if that is unknown
	Reader io.ReadCloser // a body of Length bytes; -1 if that is unknown
	Length int64         // of List and Reader
	Stream Stream        // an endless body
	Tunnel Tunnel        // what follows the header, instead of HTTP
	Lasts  bool          // the body has no time limit
	Shares *fair.Shares  // the part of the workspace that Bytes takes; nil for none
	Turns  *fair.Meter   // takes the turns to write List; nil for none
	Close  bool          // the connection must close
	// Room is the part of the workspace that List takes until CloseBody; nil for none.
	Room *fair.Room
}

// NewResponse returns a response without a body.
func NewResponse(status int, from Source) *Response {
	return &Response{Status: status, Header: http.Header{}, Source: from}
}

// Stream is an endless body. Exactly one of its methods is called, once.
type Stream interface {
	// Run writes the body in the caller's goroutine, until the body ends or the client has left.
	// ctx ends when the client leaves.
	Run(ctx context.Context, out *ChunkWriter)
	// Abandon is called instead if the connection is lost.
	Abandon()
}

// Tunnel joins a client with upstream after both left HTTP. Exactly one of its methods is called,
// once.
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

// LetGo subtracts n from the number of answers that hold the response's part of the workspace.
func (r *Response) LetGo(n int) {
	if r != nil {
		r.Shares.Release(n)
	}
}

// copySize is the maximum size of a read and a write, in bytes.
const copySize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// WriteBody writes the list or the reader. A reader takes turns, unless the body lasts: an event
// must not wait.
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

// CloseBody releases the list or the reader. It is called after the body was written, or if it will
// not be.
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

// AuditID returns the client's Audit-Id, or a new one.
func (r *Request) AuditID() string {
	if id := r.Header.Get("Audit-Id"); id != "" {
		return id
	}
	return uuid.NewString()
}
