package access

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

const (
	// refusedTTL bounds how long a token is refused that was refused once: it may be
	// so new that the apiserver does not know it yet.
	refusedTTL = 10 * time.Second
	// tokensMax is how many good tokens are remembered at most, and how many others;
	// then all of them are forgotten. The library's cache has a bound in time only, and clients can make up
	// tokens faster than time passes.
	tokensMax = 32 << 10
)

// tokens has bearer tokens reviewed and remembers the outcome: those that are good
// apart from the others, which clients can make up.
type tokens struct {
	review    authenticator.Token
	ttl       time.Duration
	good, bad atomic.Pointer[generation]
}

// generation is a cache and how many tokens it was asked to remember.
type generation struct {
	authenticator.Token
	taken atomic.Int64
}

func newTokens(client authenticationv1.AuthenticationV1Interface, ttl time.Duration) (authenticator.Request, error) {
	review, err := webhook.NewFromInterface(client, nil, *retries(), reviewTimeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
		RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	})
	if err != nil {
		return nil, fmt.Errorf("token reviews: %w", err)
	}
	t := &tokens{review: review, ttl: ttl}
	t.begin()
	// As websocket.ProtocolAuthenticator is asked second, both tokens of a request are
	// taken in the apiserver's order.
	return group.NewAuthenticatedGroupAdder(union.New(bearertoken.New(t), websocket.NewProtocolAuthenticator(t))), nil
}

// begin forgets what is remembered.
func (t *tokens) begin() {
	remember(&t.bad, false, 0, min(t.ttl, refusedTTL), t.ask)
	remember(&t.good, true, t.ttl, 0, func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		return t.bad.Load().AuthenticateToken(ctx, token)
	})
}

// remember puts a cache in front of ask that keeps the good or the others, until they
// are too many.
func remember(in *atomic.Pointer[generation], good bool, goodTTL, badTTL time.Duration, ask authenticator.TokenFunc) {
	g := &generation{}
	g.Token = cache.New(authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		resp, ok, err := ask(ctx, token)
		if ok == good && err == nil && g.taken.Add(1) == tokensMax {
			remember(in, good, goodTTL, badTTL, ask)
		}
		return resp, ok, err
	}), false, goodTTL, badTTL)
	in.Store(g)
}

// AuthenticateToken implements authenticator.Token.
func (t *tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return t.good.Load().AuthenticateToken(ctx, token)
}

// ask has upstream review a token. It fails only if there is no answer.
func (t *tokens) ask(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	resp, ok, err := t.review.AuthenticateToken(ctx, token)
	if err != nil && !isUnavailable(err) {
		return nil, false, nil
	}
	return resp, ok, err
}

// isUnavailable tells that a review had no outcome from one that said no.
func isUnavailable(err error) bool {
	if all, ok := err.(utilerrors.Aggregate); ok { //nolint:errorlint // it is what the union returns
		return slices.ContainsFunc(all.Errors(), isUnavailable)
	}
	_, answered := errors.AsType[*apierrors.StatusError](err)
	_, unreached := errors.AsType[*url.Error](err)
	return answered || unreached || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
