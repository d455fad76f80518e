package grants

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Again returns the review function of an open watch. If its error is not exchange.ErrRevoked, the
// review failed without a result. The decisions on the namespaces of a narrowed watch are renewed
// elsewhere, so that its sender only has to be the same user still.
func Again(a func() *access.Access, who exchange.Credentials, what exchange.Asked, n *Narrowing) func(context.Context) error {
	return func(ctx context.Context) error {
		a, sender := a(), who.AsHTTP(ctx)
		caller, err := a.Authenticate(sender)
		var u user.Info
		if err == nil {
			u, err = a.EffectiveUser(ctx, caller, sender.Header)
		}
		switch {
		case errors.Is(err, access.ErrUnavailable):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", exchange.ErrRevoked, err)
		case !n.All() && n.isOf(u):
			return nil
		case !n.All():
			return exchange.ErrRevoked
		}
		decision, _, err := a.Authorize(ctx, what.Attributes(u))
		if decision == authorizer.DecisionAllow {
			return nil
		}
		return cmp.Or(err, exchange.ErrRevoked)
	}
}
