package exchange

import (
	"context"
	"time"
)

// Handler answers requests.
type Handler interface {
	// Handle answers a request. It may replace the route, as that of a view, and does not panic.
	// Over HTTP/2, ctx ends when the client leaves. Over HTTP/1.1 it does not: see Request.Client.
	Handle(ctx context.Context, req *Request, rt *Route) *Response
	// Answered must be called before a response is written, even for a malformed request. written
	// must be called once, after the response was written or given up, with the number of bytes of
	// its body. For a request without Memory it may be called before.
	Answered(req *Request, rt Route, resp *Response, took time.Duration) (written func(bytes int64))
}
