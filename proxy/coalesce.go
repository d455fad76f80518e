package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// shareMax bounds an answer that is shared, in bytes: longer ones are streamed
	// to the one who asked first, and the others ask for themselves.
	shareMax = 4 << 20
	// shareWait bounds how long others wait for such an answer: kube-apiserver
	// itself gives up after a minute.
	shareWait = time.Minute
	// gatheredKeep is how large a buffer may be to be used again, in bytes.
	gatheredKeep = 64 << 10
)

// sharedForward forwards a read, together with others if they are the same.
func (s *Server) sharedForward(ctx context.Context, req *request, rt route, t *trip, done func()) *response {
	key, ok := shareKey(req, rt)
	if !ok {
		return s.forward(ctx, req, rt, t, done)
	}
	common := false
	resp, flew := s.flights.share(ctx, key, t.takes, func(crowd bool) (*response, bool) {
		if !crowd {
			return s.forward(ctx, req, rt, t, done), false
		}
		all := *req
		all.client = nobody{} // the others still wait when this one leaves
		bounded, cancel := context.WithCancel(s.ctx)
		late := time.AfterFunc(shareWait, cancel)
		resp := s.forward(bounded, &all, rt, t, joined(done, cancel))
		common = s.buffer(bounded, req, resp)
		late.Stop() // what is too long to be shared may take its time
		return resp, common
	})
	switch {
	case !flew && ctx.Err() != nil:
		resp.letGo(1) // it may have landed all the same
		done()
		return clientGone()
	case !flew && resp == nil:
		return s.forward(ctx, req, rt, t, done)
	case !flew:
		done()
		s.metrics.shared.Inc()
		return resp.shared(req)
	case common:
		return resp.shared(req)
	}
	return resp
}

// shareWork is how many times its length an answer takes while it is read: the buffer grows by
// doubling, and is copied.
const shareWork = 3

// buffer reads an answer that others share, if the workspace has room for it. Short ones take none
// once they were read, like those that nobody shares.
func (s *Server) buffer(ctx context.Context, req *request, resp *response) (whole bool) {
	user := req.User()
	for _, most := range []int64{gatherMax, shareMax} {
		if s.workspace.Take(ctx, fair.Claim{User: user, Size: shareWork * most, Held: req.Held()}) != nil {
			return false
		}
		whole = resp.buffer(most) == nil
		kept := int64(0)
		free := sync.OnceFunc(func() { s.workspace.Give(user, kept) })
		switch {
		case most == gatherMax:
		case whole:
			kept = int64(len(resp.bytes))
			resp.shares = s.workspace.Shared(free)
		case resp.length <= most: // the beginning was read
			kept = most
			resp.reader = freeing{resp.reader, free}
		}
		if most > gatherMax {
			s.workspace.Discard((shareWork - 1) * int64(len(resp.bytes)))
		}
		s.workspace.Give(user, shareWork*most-kept)
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

// nobody is a client that never leaves.
type nobody struct{}

func (nobody) whenGone(context.CancelFunc) (stop func()) { return func() {} }
func (nobody) interrupt()                                {}

var errLong = errors.New("answer is too long to be shared")

// gatherMax bounds what is read of a forwarded answer before the first of it is written, in bytes. Upstream does
// not tell the length of what takes it more than 2 KiB, and writes it in one go: piece by piece each would be a write of
// its own here, and wake the client up anew.
const gatherMax = 64 << 10

// kubernetesOwn tells API groups that kube-apiserver serves itself: an answer is there as a whole. What others serve may
// be a stream without looking like one.
func kubernetesOwn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// gather reads a short answer to its end, so that it is written at once.
func (r *response) gather(method string) {
	if method != http.MethodHead && r.status != http.StatusNoContent && r.status != http.StatusNotModified {
		_ = r.buffer(gatherMax) // what is too long is written as it comes
	}
}

// buffer reads a response of up to limit bytes into memory. A longer one, or one
// that breaks, can still be read as before.
func (r *response) buffer(limit int64) error {
	if r.reader == nil {
		return nil
	}
	if r.length > limit {
		return errLong
	}
	read := gathered.Get().(*bytes.Buffer)
	defer letGo(read)
	_, err := read.ReadFrom(io.LimitReader(r.reader, limit+1))
	body := bytes.Clone(read.Bytes())
	if err != nil || int64(len(body)) > limit {
		rest := io.Reader(r.reader)
		if err != nil {
			rest = brokenReader{err}
		}
		r.reader = readCloser{io.MultiReader(bytes.NewReader(body), rest), r.reader}
		return errLong
	}
	_ = r.reader.Close() // read to its end
	r.reader, r.bytes = nil, body
	return nil
}

// gathered are buffers for answers whose length upstream does not tell.
var gathered = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func letGo(b *bytes.Buffer) {
	if b.Cap() <= gatheredKeep {
		b.Reset()
		gathered.Put(b)
	}
}

type readCloser struct {
	io.Reader
	io.Closer
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

// shared is the answer for one of those who share it.
func (r *response) shared(req *request) *response {
	one := *r
	one.header = r.header.Clone()
	if one.header.Get("Audit-Id") != "" {
		one.header.Del("Audit-Id")
		one.header.Set("Audit-Id", req.auditID())
	}
	if r.shares != nil {
		one.bytes, one.length = nil, int64(len(r.bytes))
		one.reader = r.shares.Body(r.bytes)
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
func shareKey(req *request, rt route) (string, bool) {
	if req.method != http.MethodGet || !rt.resource || !rt.plain || rt.verb != "get" && rt.verb != "list" ||
		req.body != nil || req.wantsUpgrade() || req.identity == nil && req.identified() || req.impersonates() {
		return "", false
	}
	if _, err := url.ParseQuery(req.query); err != nil {
		return "", false
	}
	for name, values := range req.header {
		if !slices.Contains(plainHeaders, name) && (name != "Authorization" || req.identity == nil) || len(values) > 1 || name == "Connection" && !strings.EqualFold(values[0], "keep-alive") {
			return "", false
		}
	}
	pretty := "-"
	if req.pretty() {
		pretty = "pretty"
	}
	return strings.Join([]string{
		req.target, req.header.Get("Accept"), req.header.Get("Accept-Encoding"), pretty, req.identity.key(),
	}, "\n"), true
}
