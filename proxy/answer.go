package proxy

import (
	"context"
	"errors"
	"net/http"
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
	v, slot, err := s.awaitCache(ctx, req, v)
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
	case err != nil:
		return s.limits.GaveUp(req, err, "fallbacks", tooManyForwards)
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

// awaitCache waits until an outdated cache can answer, or until a slot is free to forward the read.
// Otherwise all clients of a cache that upstream is slow to fill, or to prove current, would be
// forwarded, and upstream would be even slower.
func (s *Server) awaitCache(
	ctx context.Context, req *exchange.Request, v read.Result,
) (_ read.Result, slot func(), err error) {
	began, wait, watches := time.Now(), fallbackLook, req.Route.Verb == "watch"
	soon := func() bool { return v.Reason == read.NoProgress || v.Reason == read.Lost && watches }
	for soon() && time.Since(began) < req.Patience() {
		slot, err = s.limits.admitFallback(ctx, req, wait)
		if err == nil || errors.Is(err, context.Canceled) {
			return v, slot, err
		}
		round := time.Now()
		v = s.reader.Answer(ctx, req)
		wait = max(fallbackRound-time.Since(round), fallbackLook)
	}
	if v.Reason.Stale() {
		slot, err = s.limits.admitFallback(ctx, req, fallbackWait)
		return v, slot, err
	}
	return v, nil, nil
}
