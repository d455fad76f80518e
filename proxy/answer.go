package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// answer answers an admitted request from the cache, or forwards it.
func (s *Server) answer(ctx context.Context, req *exchange.Request, rt *exchange.Route) *exchange.Response {
	if s.options.Load().Audit.WantsBody(req) {
		acceptJSON(req, rt)
		// Upstream must audit this request itself, so the request does not share another response.
		t := &forward.Attempt{}
		resp := s.forward(ctx, req, *rt, t, s.metrics.ForwardBegan(rt.Verb))
		t.Begin()
		resp.Why = "audit"
		return resp
	}
	v := s.reader.Answer(ctx, req, *rt, cuts(req, rt) != nil) // an answer of upstream would have to be cut
	if v.Reason == read.Sooner {
		if resp, ok := s.forwardSooner(ctx, req, *rt, v.Timed); ok {
			return resp
		}
		v = s.reader.Answer(ctx, req, *rt, true)
	}
	v, slot := s.unstick(ctx, req, rt, v)
	switch {
	case v.Answer != nil:
		return v.Answer
	case ctx.Err() != nil:
		if slot != nil {
			slot()
		}
		return exchange.ClientGone()
	}
	acceptJSON(req, rt)
	t, done := &forward.Attempt{Takes: v.Timed.Takes()}, func() {}
	if req.Method == http.MethodGet && rt.Resource && rt.Plain && s.feeds.Lost(rt.GVR) >= read.LostGrace {
		t.Patience = lostPatience // regardless of the reason for forwarding
	}
	switch {
	case slot != nil:
		done = slot
	case v.Reason.Stale():
		var refusal *exchange.Response
		if done, refusal = s.admitFallback(ctx, req, rt.Verb); refusal != nil {
			return refusal
		}
	case v.Reason == read.Early:
		var ok bool
		if done, ok = s.admitLate(req); !ok {
			return v.Expired
		}
	}
	resp := s.timedForward(ctx, req, *rt, t, v.Timed, done)
	if resp.Source == exchange.FromUpstream || !t.Sent.IsZero() { // otherwise the proxy has refused it
		resp.Why = string(v.Reason)
	}
	return resp
}

// unstick gets a slot to forward a read whose cache makes no progress. While no slot is free, it asks
// the cache again: otherwise all clients of a cache that is slow to fill would need a slot.
func (s *Server) unstick(ctx context.Context, req *exchange.Request, rt *exchange.Route, v read.Verdict) (_ read.Verdict, slot func()) {
	most := s.options.Load().SyncTimeout
	for began := time.Now(); v.Reason == read.Stuck && ctx.Err() == nil && time.Since(began) < most; {
		if slots, claim := s.fallback(req, rt.Verb); slots.Try(claim) {
			return v, sync.OnceFunc(func() { slots.Give(claim.User, claim.Size) })
		}
		round := time.Now()
		v = s.reader.Answer(ctx, req, *rt, true)
		if time.Since(round) < stuckRound {
			break // the client's own timeout is short
		}
	}
	return v, nil
}

// forwardSooner forwards a list that upstream usually answers faster than the cache. If upstream is
// busy or too slow, it returns false, and the cache answers.
func (s *Server) forwardSooner(ctx context.Context, req *exchange.Request, rt exchange.Route, timed *read.Timed) (resp *exchange.Response, ok bool) {
	slot := fair.Claim{User: req.User(), Size: 1, Cost: 1}
	if !s.mayGiveUp(slot.User) || !s.queues.forwards.Try(slot) {
		return nil, false // the list would be refused, or would wait
	}
	s.queues.forwards.Give(slot.User, slot.Size)
	if !s.queues.sooner.Try(slot) {
		return nil, false
	}
	// When the response begins, upstream has done most of its work.
	defer s.queues.sooner.Give(slot.User, slot.Size)
	t := &forward.Attempt{Takes: timed.Takes()}
	t.Patience = max(soonerPatience, 10*t.Takes)
	resp = s.timedForward(ctx, req, rt, t, timed, func() {})
	resp.Why = string(read.Sooner)
	late := t.Sent.IsZero() || t.Since() >= t.Patience // the request of another reader was late, or this one's
	if resp.Source == exchange.FromProxy && resp.Status >= http.StatusInternalServerError && ctx.Err() == nil && late {
		if !t.Sent.IsZero() {
			timed.Feed.Answered(timed.Work, t.Since(), false)
		}
		return nil, false
	}
	return resp, true
}

// timedForward forwards a request. If a feed could have answered the request, the feed records
// upstream's time.
func (s *Server) timedForward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *forward.Attempt, timed *read.Timed, done func()) *exchange.Response {
	resp := s.sharing.Forward(ctx, req, rt, t, forward.OnceBoth(s.metrics.ForwardBegan(rt.Verb), done))
	if timed != nil && !t.Sent.IsZero() && resp.Source == exchange.FromUpstream && ctx.Err() == nil {
		switch {
		case resp.Status == http.StatusOK:
			timed.Feed.Answered(timed.Work, t.Since(), true)
		case resp.Status == http.StatusTooManyRequests, resp.Status >= http.StatusInternalServerError:
			timed.Feed.Answered(timed.Work, t.Since(), false)
		}
	}
	return resp
}
