package proxy

import (
	"net/http"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/forward"
)

const (
	// requestsSize is the default of Options.Requests.
	requestsSize = 512 << 20
	// bytesFree is the part of a small response, and of its headers, that Request.Held includes.
	// headCopies counts long headers twice: as upstream sent them, and encoded. copySize is the buffer
	// of a response that is forwarded while it arrives. tunnelSize is the memory of an upgraded
	// request: two connections over TLS, and two such buffers.
	bytesFree, headCopies, copySize, tunnelSize = 4 << 10, 2, 32 << 10, 172 << 10
	// targetCost is the memory of parsed selectors for each byte of a path and query above targetFree.
	targetCost, targetFree = 20, 1 << 10
	// watchSize is the memory of an open watch without its connection, selectors and credentials.
	// watchesShare is the memory of all watches, as a multiple of that of all requests.
	watchSize, watchesShare = 2 << 10, 2
)

// holdRequest counts the memory of a request until its response has been written. Otherwise a
// client could fill the memory with requests that wait, or whose responses it does not read: each of
// its connections may have a thousand streams. A watch from the cache counts until it begins.
func (s *Server) holdRequest(req *exchange.Request, rt *exchange.Route) (refusal *exchange.Response) {
	size := req.Held() + selectorSize(req)
	switch {
	case req.WantsUpgrade():
		size += tunnelSize
	case lasting(*rt):
		size += copySize
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		size += exchange.SmallBody // the response, which must not be refused after upstream's work
	}
	return s.hold(req, size)
}

// holdResponse counts a response until it has been written: the body of a read, and long headers,
// which a pod may have chosen.
func (s *Server) holdResponse(req *exchange.Request, resp *exchange.Response) *exchange.Response {
	size := int64(0)
	if n := int64(len(resp.Bytes)); n > bytesFree && req.Method == http.MethodGet {
		size = n
	}
	if n := exchange.HeaderSize(resp.Header); n > bytesFree {
		size += headCopies * n
	}
	if size == 0 || req.GiveBack == nil {
		return resp
	}
	refusal := s.hold(req, size)
	switch {
	case refusal == nil:
		return resp
	case !req.OnlyReads(): // 429 would say that upstream has not executed the request
		refusal = forward.LongHeader()
	}
	resp.Abandon()
	return refusal
}

func (s *Server) hold(req *exchange.Request, size int64) (refusal *exchange.Response) {
	user, before := req.User(), req.GiveBack
	if !s.queues.requests.Try(fair.Claim{User: user, Size: size}) {
		return s.limits.tooMany(req, "requests", "too many requests are open")
	}
	req.GiveBack = func() {
		s.queues.requests.Give(user, size)
		if before != nil {
			before()
		}
	}
	return nil
}

// roomForBody makes room for a body that is longer than exchange.BodyAhead. If there is none, the body
// is forwarded while it arrives.
func (s *Server) roomForBody(req *exchange.Request) (giveBack func()) {
	if !req.Body.Fill() {
		return func() {}
	}
	size := req.Body.Length
	if size < 0 {
		size = req.Body.Most
	}
	claim := fair.Claim{User: req.User(), Size: size}
	if !s.workspace.Try(claim) {
		return func() {}
	}
	req.Body.Room = size
	return func() { s.workspace.Give(claim.User, claim.Size) }
}

// holdWatch counts the memory of an open watch with what it keeps of its request: selectors,
// credentials, and the event for the audit log.
func (l *limiter) holdWatch(req *exchange.Request) (giveBack func(), ok bool) {
	user, size := req.User(), watchSize+req.HeadSize()+selectorSize(req)
	return func() { l.memory.Give(user, size) }, l.memory.Try(fair.Claim{User: user, Size: size})
}

// selectorSize estimates the memory of the parsed selectors in a long query.
func selectorSize(req *exchange.Request) int64 {
	return targetCost * int64(max(0, len(req.Target)-targetFree))
}
