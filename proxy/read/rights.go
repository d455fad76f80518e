package read

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// authorize refuses the read if the caller, or the impersonated user, may not read. If the review
// fails or the impersonation is in doubt, the read is forwarded, and upstream decides.
func (rd *Reader) authorize(ctx context.Context, r *read) (refusal *exchange.Response, err error) {
	if r.Identity == nil {
		return nil, nil
	}
	a := rd.Options().Access
	u, err := a.EffectiveUser(ctx, r.Identity, r.Header)
	switch {
	case errors.Is(err, access.ErrUndecided):
		return nil, Credentials
	case err != nil:
		return nil, Stale
	}
	attributes := r.asked(r.Path).Attributes(u)
	decision, reason, err := a.Authorize(ctx, attributes)
	if err != nil {
		return nil, Stale // nobody has decided
	}
	r.Identity.Decided = access.Decision{
		User:    u,
		Allowed: decision == authorizer.DecisionAllow,
		Reason:  reason,
	}
	if !r.Identity.Decided.Allowed {
		refusal = r.Refuse(
			exchange.StatusOf(responsewriters.ForbiddenStatusError(attributes, reason)),
		)
		refusal.Header.Set("X-Content-Type-Options", "nosniff")
	}
	if r.View.Narrows(r.plan.Route) {
		return nil, rd.narrow(r, u, refusal)
	}
	return refusal, nil
}
