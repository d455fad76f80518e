package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

const (
	// refusedTTL limits a refusal. The apiserver may accept a new token only after a delay.
	refusedTTL = 10 * time.Second
	// ownersLast is how long the owner of a good token is remembered after the outcome has expired.
	ownersLast = 5 * time.Minute
	// tokensMax and refusedMax limit remembered good and refused tokens, in bytes.
	tokensMax, refusedMax = 16 << 20, 8 << 20
)

// tokens authenticates bearer tokens by upstream's reviews, and remembers the outcomes. Refused
// tokens have their own bound, because clients can make up any number of them. So tokens that were
// good before have their own slots: otherwise strangers could lock out users of the same network.
type tokens struct {
	client    authenticationclient.TokenReviewInterface
	ttl       time.Duration
	salt      [sha256.Size]byte // makes precomputed tables of token digests useless
	good, bad *reviewCache[*authenticator.Response]
	reviews   *reviews[*authenticator.Response]
	owners    *turns // for the reviews of tokens that were good before
}

func newTokens(client authenticationclient.TokenReviewInterface, ttl time.Duration) *tokens {
	t := &tokens{
		client:  client,
		ttl:     ttl,
		good:    newReviewCache[*authenticator.Response](tokensMax),
		bad:     newReviewCache[*authenticator.Response](refusedMax),
		reviews: newReviews[*authenticator.Response](),
		owners:  newTurns(),
	}
	t.good.keep = ownersLast
	_, _ = rand.Read(t.salt[:]) // never fails
	return t
}

func (t *tokens) requests() authenticator.Request {
	// The WebSocket authenticator comes second, in the apiserver's order.
	both := union.New(bearertoken.New(t), websocket.NewProtocolAuthenticator(t))
	return group.NewAuthenticatedGroupAdder(both)
}

// networkKey is the context's key for the client's network, and knownKey that for Known's user.
type (
	networkKey struct{}
	knownKey   struct{}
)

// Known returns a context for a request on the connection of a known user. The reviews of its
// tokens wait as this user's, and not with those of strangers.
func Known(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, knownKey{}, user)
}

// AuthenticateToken implements authenticator.Token.
func (t *tokens) AuthenticateToken(
	ctx context.Context, token string,
) (*authenticator.Response, bool, error) {
	q := tokenQuestion{
		of:    t,
		key:   sha256.Sum256(append(t.salt[:], token...)),
		token: token,
	}
	q.network, _ = ctx.Value(networkKey{}).(string)
	q.user, _ = ctx.Value(knownKey{}).(string)
	resp, err := t.reviews.answer(ctx, q)
	return resp, resp != nil && err == nil, err
}

type tokenQuestion struct {
	of      *tokens
	key     key
	token   string
	network string // the client's
	user    string // of the connection; empty if it is not known
}

// known implements question. Its response is nil for a refusal.
func (q tokenQuestion) known() (resp *authenticator.Response, due, ok bool) {
	if resp, due, ok = q.of.good.get(q.key); ok {
		return resp, due, true
	}
	_, _, ok = q.of.bad.get(q.key)
	return nil, false, ok
}

// place implements question. A token that was good waits as its owner, and a new one as the user of
// its connection.
func (q tokenQuestion) place() place {
	if owner, ok := q.of.good.last(q.key); ok {
		return place{q.key, q.of.owners, owner.User.GetName(), len(q.token)}
	}
	if q.user != "" {
		return place{q.key, q.of.owners, q.user, len(q.token)}
	}
	return place{q.key, q.of.reviews.turns, q.network, len(q.token)}
}

// review implements question. Only a complete answer is an outcome: upstream may end while it
// answers, and a balancer in front of it may send something else.
func (q tokenQuestion) review(ctx context.Context) (*authenticator.Response, error) {
	t := q.of
	asked := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: q.token}}
	answer, err := persist(ctx, func() (*authenticationv1.TokenReview, error) {
		return t.client.Create(ctx, asked, metav1.CreateOptions{})
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errReview, err)
	case answer.Status.Authenticated:
		resp := &authenticator.Response{User: userOf(&answer.Status.User)}
		t.good.put(resp.User.GetName(), q.key, resp, sizeOf(resp.User), t.ttl)
		return resp, nil
	}
	t.good.put("", q.key, nil, 0, 0) // drops it: the token is no longer valid
	t.bad.put(q.network, q.key, nil, 0, min(t.ttl, refusedTTL))
	return nil, nil
}

var errReview = errors.New("review of a token failed")

func userOf(info *authenticationv1.UserInfo) user.Info {
	u := &user.DefaultInfo{
		Name:   info.Username,
		UID:    info.UID,
		Groups: info.Groups,
		Extra:  map[string][]string{},
	}
	for name, values := range info.Extra {
		u.Extra[name] = values
	}
	return u
}

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

// isUnavailable reports whether a review failed without an outcome. All other errors are refusals.
func isUnavailable(err error) bool {
	return errors.Is(err, errReview) || errors.Is(err, errCrowded) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
