package proxy

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
)

type upstream struct {
	forwards *forward.Forwarder
	sharing  forward.Sharing
	options  *atomic.Pointer[Options]
	limits   *limiter
	requests *requestLog
	life     *exchange.Life
	draining context.Context //nolint:containedctx // it is the server's
}

// share forwards a request. Equal reads share a response. It reads a short response to its end.
func (u *upstream) share(
	ctx context.Context, req *exchange.Request, t *forward.Attempt,
) *exchange.Response {
	defer t.ResponseBegins()
	resp, flight := u.sharing.Join(ctx, req, t)
	switch {
	case resp != nil && resp.Unseen:
		u.limits.metrics.Shared.Inc()
	case resp != nil: // the client has left
	case flight != nil:
		resp = u.fly(ctx, flight, req, t)
	default:
		resp = u.send(ctx, req, t)
	}
	if resp.Lasts || req.Method == http.MethodHead || !req.Route.Resource ||
		!forward.KubernetesOwn(req.Route.GVR.Group) {
		return resp
	}
	if req.Route.Plain {
		resp.BufferSmall()
	}
	_, long := resp.Body.(*exchange.Reader)
	slots := u.limits.queues.forwards
	if long && resp.Kept == nil && 2*slots.Taken() > slots.Capacity {
		return forward.ReadAhead(resp, req.Memory)
	}
	return resp
}

// fly sends a read whose response other readers may get.
func (u *upstream) fly(
	ctx context.Context, f *forward.Flight, req *exchange.Request, t *forward.Attempt,
) *exchange.Response {
	defer f.Land() // after a panic, too
	if !f.Crowded() {
		return u.send(ctx, req, t)
	}
	ctx, ours := f.Request(u.life.Serving(), t)
	return f.Share(u.send(ctx, ours, t), t)
}

// bodyMax limits the body of a request for kube-apiserver, in bytes. It is kube-apiserver's limit.
const bodyMax = 3 << 20

// send sends a request upstream. It releases the attempt's admission when the request ends. When
// the server drains, a forwarded watch ends within the drain time, like a watch from the cache.
func (u *upstream) send(
	ctx context.Context, req *exchange.Request, t *forward.Attempt,
) *exchange.Response {
	sent := false
	defer func() {
		if !sent { // after a refusal or a panic
			t.Release()
		}
	}()
	if req.Route.Subresource != "proxy" && req.Body != nil {
		// An aggregated API may accept longer bodies, and its responses may begin before a body
		// without a length ends. Lasting requests have no slot, so their number is not limited.
		aggregated := req.Route.Resource && !forward.KubernetesOwn(req.Route.GVR.Group)
		switch known := req.Body.Length >= 0; {
		case req.Body.Length <= bodyMax && (known || !aggregated):
			req.Body.Most = bodyMax
			req.Body.Keep = (known || req.Route.Resource) && !lasting(req.Route)
		case !aggregated:
			return req.Refuse(exchange.BodyTooLarge(bodyMax))
		}
	}
	if req.Body != nil && req.Body.Keep {
		// The body is read before the request takes a slot, because otherwise a few slow clients
		// could hold all slots. It can also be sent again after upstream has refused it with
		// GOAWAY.
		roomForBody(req)
		req.Body.Fill()
		if refusal := forward.BrokenBody(req); refusal != nil {
			return refusal
		}
	}
	t.Lasts, t.Relayed = lasting(req.Route), req.Route.Subresource == "proxy"
	admitted, refusal := u.limits.admitForward(ctx, req)
	if refusal != nil {
		return refusal
	}
	if !t.Lasts {
		t.Hold(admitted)
		if req.WantsUpgrade() { // once upstream accepts it, a refusal would come too late
			counted, refusal := u.limits.AdmitWatch(req)
			if refusal != nil {
				return refusal
			}
			t.Hold(counted)
		}
		sent = true
		resp := u.attempt(ctx, context.Background(), req, t)
		if _, ok := resp.Body.(exchange.Tunnel); ok {
			admitted() // an upgraded connection has no time limit, so it holds no slot
		}
		return resp
	}
	// A response with a body counts as a watch until its client has it, or has left.
	var body atomic.Bool
	t.Hold(func() {
		if !body.Load() {
			admitted()
		}
	})
	over := context.Background()
	if req.Route.Verb == "watch" {
		drained, end := context.WithCancel(context.Background())
		undrain := context.AfterFunc(u.draining, func() {
			time.AfterFunc(u.life.DrainShare(), end)
		})
		over = drained
		t.Hold(func() { undrain() })
	}
	sent = true
	resp := u.attempt(ctx, over, req, t)
	resp.Lasts = true
	from, ok := resp.Body.(*exchange.Reader)
	if !ok {
		return resp
	}
	body.Store(true)
	if req.Route.Verb == "watch" {
		o := u.options.Load()
		// Upstream's transport holds what is not read.
		from.Stall = min(o.Limits.Stall, o.Limits.Write)
		forward.WholeLines(resp.Header, from, forward.KubernetesOwn(req.Route.GVR.Group))
	}
	from.ReadCloser = u.guardUnread(req, from.ReadCloser, admitted)
	return resp
}

// attempt sends a request, and counts it if its client gives it up. The response ends with over.
func (u *upstream) attempt(
	ctx, over context.Context, req *exchange.Request, t *forward.Attempt,
) *exchange.Response {
	resp := u.forwards.Send(ctx, over, u.life.Stopping(), req, t)
	if t.GivenUp {
		u.limits.countGivenUp(req.User())
	}
	return resp
}
