package forward

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// shareMax bounds an answer that is shared, in bytes: longer ones are streamed
	// to the one who asked first, and the others ask for themselves.
	shareMax = 4 << 20
	// shareWait bounds how long others wait for such an answer: kube-apiserver
	// itself gives up after a minute.
	shareWait = time.Minute
)

// Sharing forwards reads, those that are the same together.
type Sharing struct {
	// Send sends a request upstream. Done is called once, when it is through.
	Send func(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Trip, done func()) *exchange.Response
	// Workspace has the memory for answers that are shared.
	Workspace *fair.Workspace
	// Serving ends when nobody is served any more.
	Serving context.Context //nolint:containedctx // it is the server's
	// Shared counts an answer to a request that upstream never saw.
	Shared func()

	flights flights
}

// Forward forwards a request. A short answer is read to its end.
func (s *Sharing) Forward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Trip, done func()) *exchange.Response {
	resp := s.share(ctx, req, rt, t, done)
	if rt.Plain && rt.Resource && !resp.Lasts && kubernetesOwn(rt.GVR.Group) {
		resp.Gather(req.Method)
	}
	return resp
}

// Waiting is how many requests wait for another one's answer or for their turn to ask.
func (s *Sharing) Waiting() int { return s.flights.waiting() }

// share forwards a read, together with others if they are the same.
func (s *Sharing) share(ctx context.Context, req *exchange.Request, rt exchange.Route, t *Trip, done func()) *exchange.Response {
	key, ok := shareKey(req, rt)
	if !ok {
		return s.Send(ctx, req, rt, t, done)
	}
	common := false
	resp, flew := s.flights.share(ctx, key, t.Takes, func(crowd bool) (*exchange.Response, bool) {
		if !crowd {
			return s.Send(ctx, req, rt, t, done), false
		}
		all := *req
		all.Client = exchange.Nobody{} // the others still wait when this one leaves
		bounded, cancel := context.WithCancel(s.Serving)
		late := time.AfterFunc(shareWait, cancel)
		resp := s.Send(bounded, &all, rt, t, OnceBoth(done, cancel))
		common = s.buffer(bounded, req, resp)
		late.Stop() // what is too long to be shared may take its time
		return resp, common
	})
	switch {
	case !flew && ctx.Err() != nil:
		resp.LetGo(1) // it may have landed all the same
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

// shareWork is how many times its length an answer takes while it is read: the buffer grows by
// doubling, and is copied.
const shareWork = 3

// buffer reads an answer that others share, if the workspace has room for it. Short ones take none
// once they were read, like those that nobody shares.
func (s *Sharing) buffer(ctx context.Context, req *exchange.Request, resp *exchange.Response) (whole bool) {
	user := req.User()
	for _, most := range []int64{exchange.GatherMax, shareMax} {
		if s.Workspace.Take(ctx, fair.Claim{User: user, Size: shareWork * most, Held: req.Held()}) != nil {
			return false
		}
		whole = resp.Buffer(most) == nil
		kept := int64(0)
		free := sync.OnceFunc(func() { s.Workspace.Give(user, kept) })
		switch {
		case most == exchange.GatherMax:
		case whole:
			kept = int64(len(resp.Bytes))
			resp.Shares = s.Workspace.Shared(free)
		case resp.Length <= most: // the beginning was read
			kept = most
			resp.Reader = freeing{resp.Reader, free}
		}
		if most > exchange.GatherMax {
			s.Workspace.Discard((shareWork - 1) * int64(len(resp.Bytes)))
		}
		s.Workspace.Give(user, shareWork*most-kept)
		if whole {
			return true
		}
	}
	return false
}

// freeing is a body that takes some of the workspace.
type freeing struct {
	io.ReadCloser
	free func()
}

// Close implements io.Closer.
func (f freeing) Close() error {
	defer f.free()
	return f.ReadCloser.Close()
}

// kubernetesOwn tells API groups that kube-apiserver serves itself: an answer is there as a whole. What others serve may
// be a stream without looking like one.
func kubernetesOwn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// shared is the answer for one of those who share it.
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

// plainHeaders are request headers that either do not show in the answer to a
// read or are part of the key.
var plainHeaders = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Audit-Id", "Cache-Control", "Connection", "Content-Type", "Host",
	"Kubectl-Command", "Kubectl-Session", "Traceparent", "Tracestate", "User-Agent",
}

// shareKey tells reads that upstream answers alike: those with the same credentials.
// Without authentication, who brings some is answered alone.
func shareKey(req *exchange.Request, rt exchange.Route) (string, bool) {
	if req.Method != http.MethodGet || !rt.Resource || !rt.Plain || rt.Verb != "get" && rt.Verb != "list" ||
		req.Body != nil || req.WantsUpgrade() || req.Identity == nil && req.Identified() || req.Impersonates() {
		return "", false
	}
	if _, err := url.ParseQuery(req.Query); err != nil {
		return "", false
	}
	for name, values := range req.Header {
		if !slices.Contains(plainHeaders, name) && (name != "Authorization" || req.Identity == nil) || len(values) > 1 || name == "Connection" && !strings.EqualFold(values[0], "keep-alive") {
			return "", false
		}
	}
	pretty := "-"
	if req.Pretty() {
		pretty = "pretty"
	}
	return strings.Join([]string{
		req.Target, req.Header.Get("Accept"), req.Header.Get("Accept-Encoding"), pretty, req.Identity.Key(),
	}, "\n"), true
}
