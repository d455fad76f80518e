package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// shareMax limits a shared response, in bytes. A longer response is streamed to its first
	// reader, and each of the other readers sends its own request.
	shareMax = 4 << 20
	// shareWait limits the wait for a shared response. It equals kube-apiserver's own limit.
	shareWait = time.Minute
)

// Sharing forwards requests. Equal reads share a response.
type Sharing struct {
	// Send admits a request and sends it upstream by a Forwarder. It releases the attempt's
	// admission when the request ends.
	Send func(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Attempt) *exchange.Response
	// Serving ends when the server ends.
	Serving context.Context //nolint:containedctx // it is the server's
	// Shared counts a request that was answered without being sent upstream.
	Shared func()
	// Crowded reports whether many requests are in flight. Responses are then read completely
	// before they are written, so that slow clients do not hold the slots of requests.
	Crowded func() bool

	flights fair.Coalescer[*exchange.Response]
}

// Forward forwards a request. It reads a short response completely before it returns.
func (s *Sharing) Forward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Attempt) *exchange.Response {
	defer t.ResponseBegins()
	resp := s.share(ctx, req, rt, t)
	if resp.Streaming || req.Method == http.MethodHead || !rt.Resource || !KubernetesOwn(rt.GVR.Group) {
		return resp
	}
	if rt.Plain {
		resp.BufferSmall()
	}
	if resp.Reader != nil && resp.Kept == nil && s.Crowded() {
		if kept, whole, _ := buffer(resp, req.Memory, req.Memory.Try); whole {
			resp.Kept = kept
			return shared(resp)
		}
	}
	return resp
}

// Waiting returns the number of requests that wait for the response to another request or for their
// turn.
func (s *Sharing) Waiting() int { return s.flights.Waiting() }

// share forwards a request. Equal reads share the response.
func (s *Sharing) share(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Attempt) *exchange.Response {
	key, ok := shareKey(req, rt)
	if !ok {
		return s.Send(ctx, req, rt, t)
	}
	common := false
	resp, flew := s.flights.Share(ctx, key, func(crowd bool) (_ *exchange.Response, all bool) {
		if !crowd {
			return s.Send(ctx, req, rt, t), false
		}
		ours := *req
		ours.Client = exchange.Nobody{} // other readers still wait if this client leaves
		bounded, cancel := context.WithCancelCause(s.Serving)
		late := time.AfterFunc(shareWait, func() { cancel(context.DeadlineExceeded) })
		t.Hold(func() { cancel(nil) })
		resp := s.Send(bounded, &ours, rt, t)
		resp.BufferSmall()
		kept, whole, err := buffer(resp, req.Memory, func(size int64) bool { return req.Memory.Take(bounded, size) == nil })
		late.Stop() // a longer response has no time limit
		switch {
		case err != nil: // otherwise each reader would send its own request
			resp.CloseBody()
			resp, whole = exchange.StatusResponse(unanswered(err, true, true), exchange.FromProxy), true
		case !whole:
			resp.Reader = watched{resp.Reader, req.Client.CancelWhenGone(func() { cancel(nil) })}
		}
		resp.Kept, common = kept, whole
		return resp, whole
	})
	switch {
	case !flew && ctx.Err() != nil:
		t.Release()
		return exchange.ClientGone()
	case !flew && resp == nil:
		return s.Send(ctx, req, rt, t)
	case !flew:
		t.Release()
		s.Shared()
		one := shared(resp)
		one.Unseen = true
		if one.Header.Get("Audit-Id") != "" { // only in the request that upstream has seen
			one.Header.Set("Audit-Id", req.AuditID())
		}
		return one
	case common:
		return shared(resp)
	}
	return resp
}

// shareWork is the peak memory to read a response, as a multiple of its length: the buffer is
// doubled and copied as it grows.
const shareWork = 3

// buffer reads a response to its end, if it is not too long and take finds room for it. kept is the memory of
// its bytes, which all its readers have; nil for a small response. The error is that of a broken response.
// The room for the beginning of a response that breaks, or is too long, stays with the request.
func buffer(resp *exchange.Response, room *fair.Holding, take func(size int64) bool) (kept *fair.Common, whole bool, err error) {
	most := int64(shareMax)
	switch {
	case resp.Reader == nil:
		return nil, true, nil
	case resp.Length > most:
		return nil, false, nil
	case resp.Length >= 0:
		most = resp.Length
	}
	if !take(shareWork * most) {
		return nil, false, nil
	}
	if err = resp.Buffer(most); err != nil {
		room.Give((shareWork - 1) * most)
		if errors.Is(err, exchange.ErrLong) {
			err = nil
		}
		return nil, false, err
	}
	size := int64(len(resp.Bytes))
	room.Give(shareWork*most - size)
	return room.Share(size), true, nil
}

// watched is a body whose request ends if its client leaves.
type watched struct {
	io.ReadCloser
	unwatch func()
}

// Close implements io.Closer.
func (w watched) Close() error {
	w.unwatch()
	return w.ReadCloser.Close()
}

// KubernetesOwn reports whether an API group belongs to kube-apiserver. Other groups may respond
// with streams to requests that do not look like streams.
func KubernetesOwn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// shared returns one reader's copy of a shared response.
func shared(r *exchange.Response) *exchange.Response {
	one := *r
	one.Header = r.Header.Clone()
	if n := int64(len(r.Bytes)); n > exchange.SmallBody {
		one.Bytes, one.Length = nil, n
		one.Reader = io.NopCloser(bytes.NewReader(r.Bytes))
	}
	return &one
}

// shareKey returns a key. Reads with the same key receive the same response from upstream, and have
// the same credentials. shareKey returns false for a request that must not share. Without
// authentication, no request with credentials may share.
func shareKey(req *exchange.Request, rt exchange.Route) (string, bool) {
	var also []string
	switch {
	case isDiscovery(rt, req.Path):
		also = conditions
	case !rt.Plain:
		return "", false
	}
	if req.Method != http.MethodGet || req.Body != nil || !req.Plain(also...) || rt.Verb != "get" && rt.Verb != "list" {
		return "", false
	}
	if _, err := url.ParseQuery(req.Query); err != nil {
		return "", false
	}
	pretty := "-"
	if req.Pretty() {
		pretty = "pretty"
	}
	return strings.Join([]string{
		req.Target, req.Header.Get("Accept"), req.Header.Get("Accept-Encoding"), pretty,
		req.Header.Get("If-None-Match"), req.Header.Get("If-Modified-Since"), req.Identity.Key(),
	}, "\n"), true
}

// conditions are the headers with which clients revalidate their copies of discovery and OpenAPI.
var conditions = []string{"If-None-Match", "If-Modified-Since"}

// isDiscovery reports whether a path belongs to discovery, to OpenAPI or to the version.
func isDiscovery(rt exchange.Route, path string) bool {
	return !rt.Resource && (path == "/api" || path == "/apis" || path == "/version" ||
		strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") || strings.HasPrefix(path, "/openapi/"))
}
