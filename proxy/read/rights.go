package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/query"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

func (r *read) asked() query.Asked {
	return query.Asked{Route: r.Route, Path: r.Path, Labels: r.Labels, Fields: r.Fields}
}

// authorize checks whether the caller, or the impersonated user, may read, and refuses the read if
// not. If the review fails or the impersonation is in doubt, the read is forwarded, and upstream
// decides.
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
	attributes := r.asked().Attributes(u)
	decision, reason, err := a.Authorize(ctx, attributes)
	if err != nil {
		return nil, Stale // nobody has decided
	}
	r.Decided = exchange.Decision{User: u, Allowed: decision == authorizer.DecisionAllow, Reason: reason}
	if r.Decided.Allowed {
		return nil, nil
	}
	refusal = r.Fail(exchange.StatusOf(responsewriters.ForbiddenStatusError(attributes, reason)), exchange.FromProxy)
	refusal.Header.Set("X-Content-Type-Options", "nosniff")
	return refusal, nil
}

// reviewAgain returns the review function of an open watch, see watch.Params. If its error is not
// watch.ErrRevoked, the review failed without a result. The function keeps only the necessary part
// of the read in memory.
func (rd *Reader) reviewAgain(r *read) func(context.Context) error {
	who, what := r.Credentials(), r.asked()
	return func(ctx context.Context) error {
		a, sender := rd.Options().Access, who.AsHTTP(ctx)
		caller, err := a.Authenticate(sender)
		var u user.Info
		if err == nil {
			u, err = a.EffectiveUser(ctx, caller, sender.Header)
		}
		switch {
		case errors.Is(err, access.ErrUnavailable):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", watch.ErrRevoked, err)
		}
		decision, _, err := a.Authorize(ctx, what.Attributes(u))
		if decision == authorizer.DecisionAllow {
			return nil
		}
		return cmp.Or(err, watch.ErrRevoked)
	}
}
