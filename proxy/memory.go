package proxy

import (
	"net/http"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
)

const (
	// bytesFree is the part of a small response, and of its headers, that Request.Held includes.
	// headCopies counts long headers twice: as upstream sent them, and encoded. copySize is the
	// buffer of a response that is forwarded while it arrives. tunnelSize is the memory of an
	// upgraded request: two connections over TLS, and two such buffers.
	bytesFree, headCopies, copySize, tunnelSize = 4 << 10, 2, 32 << 10, 172 << 10
	// targetCost is the memory of parsed selectors for each byte of a target above targetFree.
	targetCost, targetFree = 20, 1 << 10
	// watchSize is the memory of an open watch without its connection, selectors and credentials.
	watchSize = 2 << 10
)

// holdRequest counts the memory of a request until its response has been written. Otherwise a
// client could fill the memory with requests that wait, or whose responses it does not read: each
// of its connections may have a thousand streams. A watch from the cache counts until it begins.
func (l *limiter) holdRequest(req *exchange.Request) (refusal *exchange.Response) {
	size, memory := req.Held()+selectorSize(req), l.queues.memory
	switch {
	case req.WantsUpgrade():
		size, memory = size+tunnelSize, l.queues.lasting
	case lasting(req.Route):
		size, memory = size+copySize, l.queues.lasting
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		size += exchange.SmallBody // the response, which must not be refused after upstream's work
	}
	holding := memory.Holding(req.User())
	if !holding.Try(size) {
		return l.tooManyOpen(req)
	}
	req.Memory = holding
	return nil
}

func (l *limiter) tooManyOpen(req *exchange.Request) *exchange.Response {
	return l.tooMany(req, "requests", "too many requests are open")
}

// holdResponse counts a response until it has been written: the body of a read, and long headers,
// which a pod may have chosen.
func (l *limiter) holdResponse(req *exchange.Request, resp *exchange.Response) *exchange.Response {
	size := int64(0)
	if n := int64(len(resp.Bytes())); n > bytesFree && req.Method == http.MethodGet {
		size += n
	}
	if n := exchange.HeaderSize(resp.Header); n > bytesFree {
		size += headCopies * n
	}
	if req.Memory.Join(resp.Kept) && (size == 0 || req.Memory.Try(size)) {
		return resp
	}
	resp.Abandon()
	if !req.OnlyReads() { // 429 would say that upstream has not executed the request
		return forward.LongHeader()
	}
	return l.tooManyOpen(req)
}

// roomForBody makes room for a body longer than exchange.BodyAhead, or lets it stream.
func roomForBody(req *exchange.Request) {
	if !req.Body.Fill() {
		return
	}
	size := req.Body.Length
	if size < 0 {
		size = req.Body.Most
	}
	if req.Memory.Try(size) {
		req.Body.Room = size
	}
}

// holdWatch counts what an open watch keeps: selectors, credentials, the event for the audit log.
func (l *limiter) holdWatch(req *exchange.Request) (giveBack func(), ok bool) {
	user, size := req.User(), watchSize+req.HeadSize()+selectorSize(req)
	return func() { l.queues.lasting.Give(user, size) }, l.queues.lasting.Try(user, size)
}

// selectorSize estimates the memory of the parsed selectors in a long query.
func selectorSize(req *exchange.Request) int64 {
	return targetCost * int64(max(0, len(req.Target)-targetFree))
}
