package exchange

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Response is a handler's response. At most one of its bodies is set.
type Response struct {
	Status int
	// MetricStatus is the status for metrics if it differs from Status. For example, a watch that
	// consists of one ERROR event has Status 200.
	MetricStatus int
	Header       http.Header
	Source       Source
	Why          string // reason for which upstream answered, for metrics
	// Unseen is true if upstream has not received this request and the response is shared.
	Unseen bool
	// Failure is the Status in the body, if the proxy made the body.
	Failure *metav1.Status

	Bytes     []byte        // a small body
	List      io.WriterTo   // a body of Length bytes; -1 if that is unknown
	Reader    io.ReadCloser // a body of Length bytes; -1 if that is unknown
	Length    int64         // of List and Reader
	Stream    Stream        // an endless body
	Tunnel    Tunnel        // replaces HTTP after the header
	Streaming bool          // the body has no time limit
	// Stall is the time for which the client may leave a lasting Reader unread before it is
	// disconnected; 0 means any time, as for a log.
	Stall time.Duration
	// Kept is the memory of Reader's bytes, which other responses have, too; nil for none.
	Kept  *fair.Common
	Turns *fair.Meter // provides the turns to write List; nil for none
	Last  bool        // the connection must close
	// Release gives back what the request holds. It is nil for nothing.
	Release Release
	// State is what List is written from, or nil. A slow list ends once State does not stay.
	State fair.Stayer
}

// Release is what a request holds until its response has been written: memory, and its place in
// metrics and in the log.
type Release interface {
	// Written is called once, with the number of bytes of the body.
	Written(bytes int64)
}

// NewResponse returns a response without a body.
func NewResponse(status int, from Source) *Response {
	return &Response{Status: status, Header: http.Header{}, Source: from}
}

// Long reports whether the response has no time limit of its own, as for a watch.
func (r *Response) Long() bool { return r.Streaming || r.Stream != nil || r.Tunnel != nil }

// Stream is an endless body. The caller calls either Run or Abandon, once.
type Stream interface {
	// Run writes the body in the caller's goroutine, until the body ends or the client has left.
	// ctx ends when the client leaves.
	Run(ctx context.Context, out *ChunkWriter)
	// Abandon must be called instead of Run if the connection is lost.
	Abandon()
	// Reason returns the reason for the end of the stream, for metrics. It is valid after Run has
	// returned.
	Reason() string
}

// Tunnel joins a client with upstream after both left HTTP. The caller calls exactly one of its
// methods, once.
type Tunnel interface {
	// Join takes the connection over.
	Join(client TunnelClient)
	// Abandon must be called instead of Join if the connection is lost.
	Abandon()
}

// TunnelClient is a client's connection.
type TunnelClient interface {
	net.Conn
	// LimitWrites makes all writes fail after until, also a running one. Any goroutine may call it.
	LimitWrites(until time.Time)
}

// Source is the origin of a response.
type Source string

// The sources.
const (
	FromCache    Source = "cache"
	FromUpstream Source = "upstream"
	FromProxy    Source = "proxy" // refused or failed here
)

// copySize limits a read and a write, in bytes; smallSize, if the user holds too much memory.
const copySize, smallSize = 32 << 10, 4 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// WriteBody writes the list or the reader. Writes from the reader wait for turns, unless the body
// has no time limit, because an event must not wait.
func (r *Response) WriteBody(ctx context.Context, w io.Writer, req *Request, slots *fair.Slots) (int64, error) {
	if r.List != nil {
		return fair.WriteLong(w, r.List, r.Turns, req.Memory.Try(fair.LargeBuffer), r.State)
	}
	if r.Kept != nil {
		w = fair.Paced(w)
	}
	if !r.Streaming {
		turns := fair.NewMeter(ctx, req, slots, false)
		turns.End() // there is no work before the response
		w = fair.InTurns(w, &turns)
	}
	if !req.Memory.Try(2 * copySize) {
		return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r.Reader}, make([]byte, smallSize))
	}
	buffer := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r.Reader}, buffer[:])
}

// Abandon releases the resources of a response that will not be sent.
func (r *Response) Abandon() {
	switch {
	case r.Stream != nil:
		r.Stream.Abandon()
	case r.Tunnel != nil:
		r.Tunnel.Abandon()
	}
	r.Close(0)
}

// Close releases the resources of a response, of whose body so many bytes have been written.
// Whoever writes the response must call it. Further calls do nothing.
func (r *Response) Close(bytes int64) {
	if r.Reader != nil {
		_ = r.Reader.Close() // the body was read to its end, or is not needed
		r.Reader = nil
	}
	if r.Release != nil {
		r.Release.Written(bytes)
		r.Release = nil
	}
}

// Stamp sets the headers that all of kube-apiserver's responses have.
func (r *Request) Stamp(resp *Response) {
	resp.Header.Set("Cache-Control", "no-cache, private")
	resp.Header.Set("Audit-Id", r.AuditID())
}

// AuditID returns the client's Audit-Id, or a new Audit-Id.
func (r *Request) AuditID() string {
	if id := r.Header.Get("Audit-Id"); id != "" {
		return id
	}
	return uuid.NewString()
}
