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

// Sharing lets equal reads share a response.
type Sharing struct {
	flights fair.Coalescer[*exchange.Response]
}

// Join returns the response to an equal read, or a flight that the caller leads. If it returns
// neither, the caller must forward the request by itself. With a response, the attempt has ended.
func (s *Sharing) Join(
	ctx context.Context, req *exchange.Request, t *Attempt,
) (*exchange.Response, *Flight) {
	key, ok := shareKey(req)
	if !ok {
		return nil, nil
	}
	resp, leads := s.flights.Join(ctx, key)
	switch {
	case leads != nil:
		return nil, &Flight{flight: leads, req: req}
	case ctx.Err() != nil:
		t.Release()
		return exchange.ClientGone(), nil
	case resp == nil:
		return nil, nil
	}
	t.Release()
	one := shared(resp)
	one.Unseen = true
	if one.Header.Get("Audit-Id") != "" { // only in the request that upstream has seen
		one.Header.Set("Audit-Id", req.AuditID())
	}
	return one, nil
}

// Waiting returns the number of requests that wait for another's response or for their turn.
func (s *Sharing) Waiting() int { return s.flights.Waiting() }

// Flight is a read that is sent upstream, and whose response several readers may get. It must land.
type Flight struct {
	flight *fair.Flight[*exchange.Response]
	req    *exchange.Request
	answer *exchange.Response // for the other readers; nil if each must send a request

	// Of a flight with several readers: ctx ends with cancel, which late calls after shareWait.
	ctx    context.Context //nolint:containedctx // it is the flight's
	cancel context.CancelCauseFunc
	late   *time.Timer
}

// Crowded reports whether the flight has several readers.
func (f *Flight) Crowded() bool { return f.flight.Crowded() }

// Land gives the response to the other readers.
func (f *Flight) Land() { f.flight.Land(f.answer) }

// Request returns the request to send if several readers wait, and a context that does not end when
// the client of one of them leaves. It ends with serving, and with the attempt's admission.
func (f *Flight) Request(serving context.Context, t *Attempt) (context.Context, *exchange.Request) {
	f.ctx, f.cancel = context.WithCancelCause(serving)
	f.late = time.AfterFunc(shareWait, func() { f.cancel(context.DeadlineExceeded) })
	t.Hold(func() { f.cancel(nil) })
	ours := *f.req
	ours.Client = exchange.Nobody{}
	return f.ctx, &ours
}

// Share reads the response for all readers, and returns that of the flight's own client. A response
// that is too long to share is only for this client.
func (f *Flight) Share(resp *exchange.Response, t *Attempt) *exchange.Response {
	memory := f.req.Memory
	resp.BufferSmall()
	take := func(size int64) bool { return memory.Take(f.ctx, size) == nil }
	kept, whole, err := buffer(resp, memory, take)
	f.late.Stop() // a longer response has no time limit
	switch {
	case err != nil: // otherwise each reader would send its own request
		resp.Close(0)
		resp = exchange.StatusResponse(unanswered(err, true, true))
	case !whole:
		t.Hold(f.req.Client.CancelWhenGone(func() { f.cancel(nil) }))
		return resp
	}
	resp.Kept = kept
	f.answer = resp
	return shared(resp)
}

// ReadAhead reads a short response to its end, so that a slow client does not hold the slot of its
// request. It does nothing if there is no room for the response.
func ReadAhead(resp *exchange.Response, memory *fair.Holding) *exchange.Response {
	kept, whole, _ := buffer(resp, memory, memory.Try)
	if !whole {
		return resp
	}
	resp.Kept = kept
	return shared(resp)
}

// shareWork is the peak memory to read a response, as a multiple of its length: the buffer is
// doubled and copied as it grows.
const shareWork = 3

// buffer reads a response to its end, if it is not too long and take finds room for it. kept is the
// memory of its bytes, which all its readers have; nil for a small response. The error is that of a
// broken response. The room of one that breaks or is too long stays with the request.
func buffer(
	resp *exchange.Response, room *fair.Holding, take func(size int64) bool,
) (kept *fair.Common, whole bool, err error) {
	most := int64(shareMax)
	from, ok := resp.Body.(*exchange.Reader)
	switch {
	case !ok:
		return nil, true, nil
	case from.Length > most:
		return nil, false, nil
	case from.Length >= 0:
		most = from.Length
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
	size := int64(len(resp.Bytes()))
	room.Give(shareWork*most - size)
	return room.Share(size), true, nil
}

// KubernetesOwn reports whether an API group belongs to kube-apiserver. Other groups may respond
// with streams to requests that do not look like streams.
func KubernetesOwn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

func shared(r *exchange.Response) *exchange.Response {
	one := *r
	one.Header = r.Header.Clone()
	if b := r.Bytes(); len(b) > exchange.SmallBody {
		one.Body = &exchange.Reader{
			ReadCloser: io.NopCloser(bytes.NewReader(b)),
			Length:     int64(len(b)),
		}
	}
	return &one
}

// shareKey returns a key. Reads with the same key receive the same response from upstream, and have
// the same credentials. shareKey returns false for a request that must not share. Without
// authentication, no request with credentials may share.
func shareKey(req *exchange.Request) (string, bool) {
	var also []string
	switch {
	case isDiscovery(req):
		also = conditions
	case !req.Route.Plain:
		return "", false
	}
	reads := req.Route.Verb == "get" || req.Route.Verb == "list"
	if !reads || req.Method != http.MethodGet || req.Body != nil || !req.Plain(also...) {
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

func isDiscovery(req *exchange.Request) bool {
	path := req.Path
	return !req.Route.Resource && (path == "/api" || path == "/apis" || path == "/version" ||
		strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") ||
		strings.HasPrefix(path, "/openapi/"))
}
