package forward

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// shareMax bounds a shared answer, in bytes. A longer answer is streamed to its first reader,
	// and each of the other readers sends its own request.
	shareMax = 4 << 20
	// shareWait bounds the wait for a shared answer: kube-apiserver gives up after a minute.
	shareWait = time.Minute
)

// Sharing forwards requests. Equal reads share an answer.
type Sharing struct {
	// Send sends a request upstream. It calls done once, when the request ends.
	Send func(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Trip, done func()) *exchange.Response
	// Workspace has the memory for shared answers.
	Workspace *fair.Workspace
	// Serving ends when the server does.
	Serving context.Context //nolint:containedctx // it is the server's
	// Shared counts a request that upstream never saw.
	Shared func()

	flights fair.Flights[*exchange.Response]
}

// Forward forwards a request. It reads a short answer to its end.
func (s *Sharing) Forward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Trip, done func()) *exchange.Response {
	resp := s.share(ctx, req, rt, t, done)
	if rt.Plain && rt.Resource && !resp.Lasts && kubernetesOwn(rt.GVR.Group) {
		resp.BufferSmall(req.Method)
	}
	return resp
}

// Waiting counts the requests that wait for the answer to another request or for their turn.
func (s *Sharing) Waiting() int { return s.flights.Waiting() }

// share forwards a request, together with equal reads.
func (s *Sharing) share(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Trip, done func()) *exchange.Response {
	key, ok := shareKey(req, rt)
	if !ok {
		return s.Send(ctx, req, rt, t, done)
	}
	common := false
	resp, flew := s.flights.Share(ctx, key, t.Takes, func(crowd bool) (*exchange.Response, bool) {
		if !crowd {
			return s.Send(ctx, req, rt, t, done), false
		}
		all := *req
		all.Client = exchange.Nobody{} // readers still wait if this one leaves
		bounded, cancel := context.WithCancel(s.Serving)
		late := time.AfterFunc(shareWait, cancel)
		resp := s.Send(bounded, &all, rt, t, OnceBoth(done, cancel))
		common = s.buffer(bounded, req, resp)
		late.Stop() // a longer answer may take its time
		return resp, common
	})
	switch {
	case !flew && ctx.Err() != nil:
		resp.LetGo(1) // the answer may have come all the same
		done()
		return exchange.ClientGone()
	case !flew && resp == nil:
		return s.Send(ctx, req, rt, t, done)
	case !flew:
		done()
		s.Shared()
		return shared(resp, req)
	case common:
		return shared(resp, req)
	}
	return resp
}

// shareWork is the peak memory to read an answer, as a multiple of its length: the buffer is
// doubled and copied as it grows.
const shareWork = 3

// buffer reads an answer that readers share, if the workspace has room. A short answer takes room
// only while it is read.
func (s *Sharing) buffer(ctx context.Context, req *exchange.Request, resp *exchange.Response) (whole bool) {
	user := req.User()
	for _, most := range []int64{exchange.SmallBody, shareMax} {
		if s.Workspace.Take(ctx, fair.Claim{User: user, Size: shareWork * most, Held: req.Held()}) != nil {
			return false
		}
		whole = resp.Buffer(most) == nil
		kept := int64(0)
		free := sync.OnceFunc(func() { s.Workspace.Give(user, kept) })
		switch {
		case most == exchange.SmallBody:
		case whole:
			kept = int64(len(resp.Bytes))
			resp.Shares = s.Workspace.Shared(free)
		case resp.Length <= most: // the beginning was read
			kept = most
			resp.Reader = freeing{resp.Reader, free}
		}
		if most > exchange.SmallBody {
			s.Workspace.Discard((shareWork - 1) * int64(len(resp.Bytes)))
		}
		s.Workspace.Give(user, shareWork*most-kept)
		if whole {
			return true
		}
	}
	return false
}

// freeing is a body that takes room in the workspace.
type freeing struct {
	io.ReadCloser
	free func()
}

// Close implements io.Closer.
func (f freeing) Close() error {
	defer f.free()
	return f.ReadCloser.Close()
}

// kubernetesOwn tells whether an API group is kube-apiserver's own. Answers of another group may be
// streams, although their requests do not look like it.
func kubernetesOwn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// shared is one reader's copy of a shared answer.
func shared(r *exchange.Response, req *exchange.Request) *exchange.Response {
	one := *r
	one.Header = r.Header.Clone()
	if one.Header.Get("Audit-Id") != "" {
		one.Header.Del("Audit-Id")
		one.Header.Set("Audit-Id", req.AuditID())
	}
	if r.Shares != nil {
		one.Bytes, one.Length = nil, int64(len(r.Bytes))
		one.Reader = r.Shares.Body(r.Bytes)
	}
	return &one
}

// shareKey returns the same key for reads that get the same answer from upstream, and false for a
// request that must not share. Reads with the same key have the same credentials. Without
// authentication, a request with credentials does not share.
func shareKey(req *exchange.Request, rt exchange.Route) (string, bool) {
	if req.Method != http.MethodGet || req.Body != nil || !req.Plain() || !rt.Plain && !isDiscovery(rt, req.Path) || rt.Verb != "get" && rt.Verb != "list" {
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
		req.Target, req.Header.Get("Accept"), req.Header.Get("Accept-Encoding"), pretty, req.Identity.Key(),
	}, "\n"), true
}

// isDiscovery tells whether a path is one of discovery or the version. Upstream sends no ETag with
// most of these documents, so only requests that wait at the same time can share one.
func isDiscovery(rt exchange.Route, path string) bool {
	return !rt.Resource && (path == "/api" || path == "/apis" || path == "/version" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/"))
}
