package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// refusedTTL bounds how long a token is refused that was refused once: it may be
	// so new that the apiserver does not know it yet.
	refusedTTL = 10 * time.Second
	// tokensMax and refusedMax bound what is remembered of good tokens and of others, in
	// bytes.
	tokensMax, refusedMax = 16 << 20, 8 << 20
)

// tokens has bearer tokens reviewed and remembers the outcome: those that are good
// apart from the others, which clients can make up.
type tokens struct {
	review    authenticator.Token
	ttl       time.Duration
	salt      [sha256.Size]byte // digests of short tokens cannot be looked up elsewhere
	good, bad *outcomes[*authenticator.Response]
	reviews   *reviews[*authenticator.Response]
	metrics   *metrics
}

const tokenResource = "tokenreviews"

// newTokenReview asks upstream about tokens.
func newTokenReview(client authenticationv1.AuthenticationV1Interface) (authenticator.Token, error) {
	review, err := webhook.NewFromInterface(client, nil, *retries(), reviewTimeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
		RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	})
	if err != nil {
		return nil, fmt.Errorf("token reviews: %w", err)
	}
	return review, nil
}

func newTokens(review authenticator.Token, ttl time.Duration, m *metrics) *tokens {
	t := &tokens{
		review: review, ttl: ttl, metrics: m,
		good: newOutcomes[*authenticator.Response](tokensMax), bad: newOutcomes[*authenticator.Response](refusedMax),
		reviews: newReviews[*authenticator.Response](tokenResource, m),
	}
	_, _ = rand.Read(t.salt[:]) // it does not fail
	m.show("token", t.good.held)
	m.show("token-refused", t.bad.held)
	return t
}

// requests authenticates requests by the tokens in them.
func (t *tokens) requests() authenticator.Request {
	// As websocket.ProtocolAuthenticator is asked second, both tokens of a request are
	// taken in the apiserver's order.
	return group.NewAuthenticatedGroupAdder(union.New(bearertoken.New(t), websocket.NewProtocolAuthenticator(t)))
}

// addressKey is where a context has the address that a request came from.
type addressKey struct{}

// withAddress is the context of a request with the address of its client. Nothing else
// is known of clients before their tokens are reviewed, so they take turns by it.
func withAddress(req *http.Request) context.Context {
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		host = req.RemoteAddr
	}
	return context.WithValue(req.Context(), addressKey{}, host)
}

// AuthenticateToken implements authenticator.Token.
func (t *tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	k := sha256.Sum256(append(t.salt[:], token...))
	of, _ := ctx.Value(addressKey{}).(string)
	review := func(ctx context.Context) (*authenticator.Response, error) { return t.ask(ctx, of, k, token) }
	if resp, ok := t.remembered(k); ok {
		t.metrics.hits.WithLabelValues(tokenResource).Inc()
		if t.good.due(k) {
			t.reviews.begin(of, k, len(token), review)
		}
		return resp, resp != nil, nil
	}
	resp, err := t.reviews.ask(ctx, of, k, len(token), func(ctx context.Context) (*authenticator.Response, error) {
		if resp, ok := t.remembered(k); ok {
			return resp, nil // since the question above
		}
		return review(ctx)
	})
	return resp, resp != nil && err == nil, err
}

// ask has a token reviewed and remembers the outcome.
func (t *tokens) ask(ctx context.Context, of string, k key, token string) (*authenticator.Response, error) {
	resp, ok, err := t.review.AuthenticateToken(ctx, token)
	switch {
	case ok && err == nil:
		t.good.put(of, k, resp, sizeOf(resp.User), t.ttl)
		return resp, nil
	case err != nil && isUnavailable(err):
		return nil, err
	}
	t.good.drop(k) // it was good until now
	t.bad.put(of, k, nil, 0, min(t.ttl, refusedTTL))
	return nil, nil
}

// remembered is the outcome of a review, nil if it said no.
func (t *tokens) remembered(k key) (resp *authenticator.Response, ok bool) {
	if resp, ok = t.good.get(k); ok {
		return resp, true
	}
	return t.bad.get(k)
}

// sizeOf is what a user takes, in bytes.
func sizeOf(u user.Info) int {
	const each = 64 // string, slice or part of a map
	size := 4*each + len(u.GetName()) + len(u.GetUID())
	for _, group := range u.GetGroups() {
		size += each + len(group)
	}
	for name, values := range u.GetExtra() {
		size += 2*each + len(name)
		for _, value := range values {
			size += each + len(value)
		}
	}
	return size
}

// isUnavailable tells that a review had no outcome from one that said no.
func isUnavailable(err error) bool {
	if all, ok := err.(utilerrors.Aggregate); ok { //nolint:errorlint // it is what the union returns
		return slices.ContainsFunc(all.Errors(), isUnavailable)
	}
	_, answered := errors.AsType[*apierrors.StatusError](err)
	_, unreached := errors.AsType[*url.Error](err)
	return answered || unreached || errors.Is(err, fair.ErrCrowded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
