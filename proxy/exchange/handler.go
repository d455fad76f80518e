package exchange

import (
	"context"
	"time"
)

// Handler answers requests.
type Handler interface {
	// Handle answers a request. It may correct the route's verb, and does not panic.
	Handle(ctx context.Context, req *Request, rt *Route) *Response
	// Answered is called before an answer is written, even before the answer to a malformed
	// request.
	Answered(req *Request, rt Route, resp *Response, took time.Duration)
}
