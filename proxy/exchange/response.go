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

// Response is a handler's response. The code that writes it closes it.
type Response struct {
	Status int
	// MetricStatus is the status for metrics if it differs from Status. For example, a watch that
	// consists of one ERROR event has Status 200.
	MetricStatus     int
	Header           http.Header
	Source           Source
	ForwardedBecause string // reason for which upstream answered, for metrics
	// Unseen is true if upstream has not received this request and the response is shared.
	Unseen bool
	// Failure is the Status in the body, if the proxy made the body.
	Failure *metav1.Status

	Body  ResponseBody // nil for none
	Kept  *fair.Common // the memory of the body's bytes if other responses share them
	Lasts bool         // the body has no time limit
	Last  bool         // the connection must close
	// Release gives back what the request holds. It is nil for nothing.
	Release Release
}

// ResponseBody is one of [Bytes], *[fair.List], *[Reader], [Stream] and [Tunnel].
type ResponseBody interface {
	// Abandon releases the resources of a body that will not be written.
	Abandon()
}

// Bytes is a small body.
type Bytes []byte

// Abandon implements ResponseBody.
func (Bytes) Abandon() {}

// Reader is a body that is read while it is written.
type Reader struct {
	io.ReadCloser
	Length int64 // -1 if it is unknown
	// Stall is the time for which the client may leave a lasting body unread before it is
	// disconnected; 0 means any time, as for a log.
	Stall  time.Duration
	closed bool
}

// Close implements io.Closer. Further calls do nothing.
func (r *Reader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return r.ReadCloser.Close()
}

// Abandon implements ResponseBody.
func (r *Reader) Abandon() { _ = r.Close() }

// Release is what a request holds until its response has been written: memory, and its place in
// metrics and in the log.
type Release interface {
	// Written is called once, with the number of bytes of the body.
	Written(bytes int64)
}

// NewResponse returns a response without a body.
func NewResponse(status int, from Source) *Response {
	return &Response{
		Status: status,
		Header: http.Header{},
		Source: from,
	}
}

// Long reports whether the response has no time limit of its own, as for a watch.
func (r *Response) Long() bool {
	switch r.Body.(type) {
	case Stream, Tunnel:
		return true
	}
	return r.Lasts
}

// Bytes returns a small body; nil if the body is another one.
func (r *Response) Bytes() []byte {
	b, _ := r.Body.(Bytes)
	return b
}

// Stream is an endless body. The caller calls either Run or Abandon, once.
type Stream interface {
	ResponseBody
	// Run writes the body in the caller's goroutine, until the body ends or the client has left.
	// ctx ends when the client leaves.
	Run(ctx context.Context, out *ChunkWriter)
	// Reason returns the reason for the end of the stream, for metrics. It is valid after Run has
	// returned.
	Reason() string
}

// Tunnel joins a client with upstream after both left HTTP. The caller calls exactly one of its
// methods, once.
type Tunnel interface {
	ResponseBody
	// Join takes the connection over.
	Join(client TunnelClient)
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

// Copy writes the body from its [Reader]. The writes wait for turns, unless the body has no time
// limit, because an event must not wait.
func (r *Response) Copy(
	ctx context.Context, w io.Writer, req *Request, slots *fair.Slots,
) (int64, error) {
	from := struct{ io.Reader }{r.Body.(*Reader)}
	if r.Kept != nil {
		w = fair.Paced(w)
	}
	if !r.Lasts {
		turns := fair.NewMeter(ctx, req, slots, false)
		turns.End() // there is no work before the response
		w = fair.InTurns(w, &turns)
	}
	if !req.Memory.Try(2 * copySize) {
		return io.CopyBuffer(struct{ io.Writer }{w}, from, make([]byte, smallSize))
	}
	buffer := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{w}, from, buffer[:])
}

// Abandon releases the resources of a response that will not be sent.
func (r *Response) Abandon() {
	if r.Body != nil {
		r.Body.Abandon()
	}
	r.Close(0)
}

// Close releases the resources of a response after so many bytes of its body have been written.
// Further calls do nothing.
func (r *Response) Close(bytes int64) {
	if from, ok := r.Body.(*Reader); ok {
		_ = from.Close() // the body was read to its end, or is not needed
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
