package proxy

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// authenticate finds out who sent a request. Without a refusal, req.identity tells.
func (s *Server) authenticate(ctx context.Context, req *exchange.Request) (refusal *exchange.Response) {
	asked := req.AsHTTP(ctx)
	caller, err := s.options.Load().Access.Authenticate(asked)
	switch {
	case errors.Is(err, access.ErrUnavailable):
		return req.Fail(reviewFailed(), exchange.FromProxy)
	case err != nil:
		refusal = req.Fail(exchange.Failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized"), exchange.FromProxy)
		refusal.Close = true // its connection counts for nobody
		return refusal
	}
	req.Identity = &exchange.Identity{Caller: caller}
	if !caller.Certificate {
		return nil
	}
	req.Identity.ActsAs = caller.User
	if !req.Impersonates() {
		return nil
	}
	as, refused := s.options.Load().Access.Impersonate(caller, asked)
	if refused != nil {
		resp := exchange.NewResponse(refused.Code, exchange.FromProxy)
		resp.Header, resp.Bytes = refused.Header, refused.Body
		req.Stamp(resp)
		return resp
	}
	req.Identity.ActsAs = as
	return nil
}

// reviewFailed says that a client's credentials could not be reviewed.
func reviewFailed() metav1.Status {
	s := exchange.Failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the upstream apiserver cannot be asked to review the credentials of the request")
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}
