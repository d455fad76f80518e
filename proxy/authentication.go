package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
)

// authentication finds out who sends a request, and for whom it acts.
type authentication struct {
	options  *atomic.Pointer[Options]
	limits   *limiter
	upstream *upstream
}

func (a *authentication) authenticate(
	ctx context.Context, req *exchange.Request,
) (refusal *exchange.Response) {
	caller, err := a.sender(ctx, req)
	switch {
	case errors.Is(err, errUnauthenticated):
		return a.limits.tooMany(req, "unauthenticated", err.Error())
	case errors.Is(err, access.ErrUnavailable):
		return unreviewed(req)
	case err != nil:
		return unauthorized(req)
	}
	req.Identity = caller
	return nil
}

const (
	// originsMost limits the CORS preflights upstream at a time. Networks share this number.
	originsMost = 16
	// originPatience is the time that upstream has to answer one.
	originPatience = 5 * time.Second
)

// askOrigin answers a CORS preflight, by which a browser asks without credentials whether a page
// may send a request. Kube-apiserver answers it before authentication, if it allows the page's
// origin (--cors-allowed-origins). Otherwise askOrigin returns nil, and the request is like others
// without credentials. Upstream sees only the question, and the client only the answer. As with a
// refusal, the connection of a stranger ends.
func (a *authentication) askOrigin(ctx context.Context, req *exchange.Request) *exchange.Response {
	const (
		origin  = "Origin"
		method  = "Access-Control-Request-Method"
		headers = "Access-Control-Request-Headers"
	)
	h := req.Header
	if req.Method != http.MethodOptions || len(h[origin]) != 1 || h.Get(origin) == "" ||
		len(h[method]) != 1 || h.Get(method) == "" ||
		h["Authorization"] != nil || req.Identified() || req.Impersonates() || req.Body != nil ||
		req.WantsUpgrade() || req.Conn.Crowded() {
		return nil
	}
	network := access.Network(req.Conn.RemoteAddr().String())
	if !a.limits.queues.origins.Try(network, 1) {
		return a.limits.tooMany(req, "unauthenticated",
			"too many requests without credentials wait for the upstream apiserver")
	}
	defer a.limits.queues.origins.Give(network, 1)
	question := *req
	question.Identity, question.Header = access.Unknown(), http.Header{}
	for _, name := range []string{origin, method, headers, "User-Agent"} {
		if h[name] != nil {
			question.Header[name] = h[name]
		}
	}
	stopping, attempt := a.upstream.life.Stopping(), &forward.Attempt{Patience: originPatience}
	got := a.upstream.forwards.Send(ctx, context.Background(), stopping, &question, attempt)
	defer got.Close(0)
	allowed := got.Status == http.StatusNoContent &&
		got.Header["Access-Control-Allow-Origin"] != nil
	if got.Source != exchange.FromUpstream || !allowed {
		return nil
	}
	answer := exchange.NewResponse(got.Status, got.Source)
	for name, values := range got.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			answer.Header[name] = values
		}
	}
	answer.Last = req.Conn.User() == ""
	return answer
}

// impersonate sets the user for whom the request of a certificate's owner acts, or refuses it. The
// request must be counted before, because its reviews may take long.
func (a *authentication) impersonate(
	ctx context.Context, req *exchange.Request,
) (refusal *exchange.Response) {
	if !req.Identity.ActsAsAnother() || !req.Impersonates() {
		return nil
	}
	as, refused, err := a.options.Load().Access.Impersonate(req.Identity, req.AsHTTP(ctx))
	switch {
	case err != nil:
		return unreviewed(req)
	case refused != nil:
		resp := exchange.NewResponse(refused.Code, exchange.FromProxy)
		resp.Header, resp.Body = refused.Header, exchange.Bytes(refused.Body)
		req.Stamp(resp)
		return resp
	}
	req.Identity.ActsAs = as
	return nil
}

var errUnauthenticated = errors.New("too many requests wait for authentication")

// sender returns the sender of a request. Until it is known, the request holds a part of the memory
// for such requests, because strangers may send any number of them. A request on the connection of
// a known user counts as this user's, so that strangers cannot hinder it.
func (a *authentication) sender(
	ctx context.Context, req *exchange.Request,
) (*access.Caller, error) {
	memory, holder, size := a.limits.queues.strangers, access.Network(req.Address()), req.Held()
	if user := req.Conn.User(); user != "" {
		memory, holder = a.limits.queues.memory, user
		ctx = access.Known(ctx, user)
	}
	if !memory.Try(holder, size) {
		return nil, errUnauthenticated
	}
	defer memory.Give(holder, size)
	return a.options.Load().Access.Authenticate(req.Sender(ctx))
}

// dropOwnToken removes the proxy's own bearer token. Without authentication, requests without
// credentials act as the proxy. So does a client in the same pod that sends the token of the pod's
// service account, as client-go's in-cluster configuration does. With NeedsToken, only requests
// with this token do: upstream judges others, and requests without credentials are refused.
func dropOwnToken(o *Options, req *exchange.Request) (refusal *exchange.Response) {
	if values := req.Header["Authorization"]; o.OwnToken != nil && len(values) == 1 {
		// The scheme has no case. Python's client writes it in lower case.
		scheme, token, _ := strings.Cut(values[0], " ")
		if strings.EqualFold(scheme, "Bearer") && o.OwnToken(token) {
			delete(req.Header, "Authorization")
			return nil
		}
	}
	if o.NeedsToken && !req.Identified() {
		return unauthorized(req)
	}
	return nil
}

func unreviewed(req *exchange.Request) *exchange.Response {
	return req.Refuse(exchange.Unreviewed())
}

func unauthorized(req *exchange.Request) *exchange.Response {
	refusal := req.Refuse(exchange.Failure(
		http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized"))
	refusal.Last = true // no user's limit counts this connection
	return refusal
}
