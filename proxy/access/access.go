package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	// ErrUnauthenticated says that a client has no valid credentials.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrUnavailable says that a review upstream failed.
	ErrUnavailable = errors.New("upstream cannot be asked for a review")
)

// Options are the settings of an [Access].
type Options struct {
	// Anonymous admits clients without credentials as system:anonymous.
	Anonymous bool
	// TokenTTL is how long a token's review is remembered, and a refusal for refusedTTL at most.
	TokenTTL time.Duration
	// AllowTTL and DenyTTL are how long allowed and denied reviews of access are remembered.
	AllowTTL, DenyTTL time.Duration
}

// Access authenticates and authorizes clients.
type Access struct {
	certificates authenticator.Request // nil if certificates are not accepted
	tokens       authenticator.Request
	anonymous    bool // clients without credentials are accepted
	decisions    *decisions
	// The filters for impersonation by callers with certificates, and for that of reads.
	constrained, unconstrained http.Handler
}

// New returns an Access that sends reviews upstream with the credentials in config. If clientCA is
// nil, client certificates are not accepted.
func New(
	config *rest.Config, clientCA *ClientCA, options Options, registry prometheus.Registerer,
) (*Access, error) {
	seconds := newSeconds(registry)
	config = rest.CopyConfig(config)
	config.QPS = -1 // reviews have their own limits
	config.Wrap(func(way http.RoundTripper) http.RoundTripper { return &measured{way, seconds} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for reviews: %w", err)
	}
	a := &Access{
		tokens:    newTokens(client.AuthenticationV1().TokenReviews(), options.TokenTTL).requests(),
		decisions: newDecisions(client.AuthorizationV1(), options),
		anonymous: options.Anonymous,
	}
	if clientCA != nil {
		chains := newChains(clientCA.content.VerifyOptions, x509.CommonNameUserConversion)
		a.certificates = group.NewAuthenticatedGroupAdder(chains)
	}
	a.constrained = newImpersonation(a.Authorize, impersonation.WithConstrainedImpersonation)
	a.unconstrained = newImpersonation(a.Authorize, impersonation.WithImpersonation)
	return a, nil
}

// Authorize is an authorizer.AuthorizerFunc. With an error, the decision is never DecisionAllow.
func (a *Access) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	found, err := a.decisions.decide(ctx, attributes)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return found.Decision, found.reason, nil
}

// Allows is Authorize for open watches, which remember its answer until a time: for its TTL, and
// for countsLeast at least if it allows.
func (a *Access) Allows(
	ctx context.Context, attributes authorizer.Attributes,
) (allowed bool, until time.Time, err error) {
	found, err := a.decisions.decide(ctx, attributes)
	if err != nil {
		return false, until, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return found.Decision == authorizer.DecisionAllow, found.until, nil
}

// DenyTTL returns the time for which denials of access count.
func (a *Access) DenyTTL() time.Duration { return a.decisions.options.DenyTTL }

// Digest returns a value that differs between different users and different attributes.
func Digest(attributes authorizer.Attributes) ([sha256.Size]byte, error) {
	encoded, err := specOf(attributes).Marshal()
	return sha256.Sum256(encoded), err
}

// Authenticate returns the sender of a request. It tries the methods in kube-apiserver's order. It
// does not change the request. The error is ErrUnauthenticated or ErrUnavailable.
func (a *Access) Authenticate(req *http.Request) (*Caller, error) {
	var refused error
	if a.certificates != nil {
		resp, ok, err := a.certificates.AuthenticateRequest(req)
		switch {
		case ok:
			return certificateCaller(resp.User, req.TLS.PeerCertificates[0]), nil
		case isUnavailable(err):
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		refused = err
	}
	ctx := context.WithValue(req.Context(), networkKey{}, Network(req.RemoteAddr))
	asked := req.WithContext(ctx)
	asked.Header = req.Header.Clone() // authenticators delete valid credentials
	resp, ok, err := a.tokens.AuthenticateRequest(asked)
	switch {
	case ok:
		return tokenCaller(resp.User, req.Header), nil
	case isUnavailable(err):
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	refused = errors.Join(refused, err)
	switch {
	case refused != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnauthenticated, refused)
	case a.anonymous:
		return anonymousCaller(req.Header), nil
	}
	return nil, ErrUnauthenticated
}

// CheckRights fails if config's user may not create TokenReviews and SubjectAccessReviews.
func CheckRights(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for reviews: %w", err)
	}
	reviews := client.AuthorizationV1().SelfSubjectAccessReviews()
	for _, needed := range []authorizationv1.ResourceAttributes{
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	} {
		needed.Verb, needed.Version = "create", "v1"
		asked := &authorizationv1.SelfSubjectAccessReview{}
		asked.Spec.ResourceAttributes = &needed
		answer, err := reviews.Create(ctx, asked, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask for the right to create %s: %w", needed.Resource, err)
		}
		if !answer.Status.Allowed {
			return fmt.Errorf("the proxy may not create %s.%s, without which clients cannot be "+
				"authenticated: bind its user to the ClusterRole system:auth-delegator",
				needed.Resource, needed.Group)
		}
	}
	return nil
}
