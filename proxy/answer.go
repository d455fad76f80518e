package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/read"
)

func (s *Server) answer(ctx context.Context, req *exchange.Request) *exchange.Response {
	if s.options.Load().Audit.WantsBody(req) {
		acceptJSON(req)
		// Upstream must audit this request itself, so the request does not share another response.
		t := &forward.Attempt{}
		t.Hold(s.metrics.ForwardBegan(req.Route.Verb))
		resp := s.upstream.send(ctx, req, t)
		t.ResponseBegins()
		resp.ForwardedBecause = "audit"
		return resp
	}
	v := s.reader.Answer(ctx, req)
	v, slot := s.awaitProgress(ctx, req, v)
	switch {
	case v.Response != nil:
		return v.Response
	case ctx.Err() != nil:
		if slot != nil {
			slot()
		}
		return exchange.ClientGone()
	}
	acceptJSON(req)
	t := &forward.Attempt{}
	rt := &req.Route
	if req.Method == http.MethodGet && rt.Resource && rt.Plain &&
		s.feeds.Lost(rt.GVR) >= read.LostGrace {
		t.Patience = lostPatience // regardless of the reason for forwarding
	}
	switch {
	case slot != nil:
		t.Hold(slot)
	case v.Reason.Stale():
		leave, refusal := s.limits.admitFallback(ctx, req)
		if refusal != nil {
			return refusal
		}
		t.Hold(leave)
	case v.Reason == read.TooOldWatch:
		leave, ok := s.limits.admitLate(req)
		if !ok {
			return v.Expired
		}
		t.Hold(leave)
	}
	t.Hold(s.metrics.ForwardBegan(req.Route.Verb))
	resp := s.upstream.share(ctx, req, t)
	// Otherwise the proxy has refused it.
	if resp.Source == exchange.FromUpstream || !t.Sent.IsZero() {
		resp.ForwardedBecause = string(v.Reason)
	}
	return resp
}

// awaitProgress gets a slot to forward a read whose cache makes no progress. While no slot is free,
// it asks the cache again: otherwise all clients of a cache that is slow to fill would need a slot.
func (s *Server) awaitProgress(
	ctx context.Context, req *exchange.Request, v read.Result,
) (_ read.Result, slot func()) {
	most, slots, user := s.options.Load().SyncTimeout, s.limits.fallbacks(req), req.User()
	for began := time.Now(); v.Reason == read.NoProgress && ctx.Err() == nil &&
		time.Since(began) < most; {
		if slots.Try(user, 1) {
			return v, sync.OnceFunc(func() { slots.Give(user, 1) })
		}
		round := time.Now()
		v = s.reader.Answer(ctx, req)
		if time.Since(round) < progressRound {
			break // the client's own timeout is short
		}
	}
	return v, nil
}
