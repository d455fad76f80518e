package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	// ErrUnauthenticated says that a client brings no credentials, or none that hold.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrUnavailable says that upstream could not be asked.
	ErrUnavailable = errors.New("upstream cannot be asked for a review")
)

// Options are the settings of an [Access].
type Options struct {
	// Anonymous takes clients without credentials for system:anonymous.
	Anonymous bool
	// TokenTTL is how long the review of a token holds. One that said no holds for
	// refusedTTL at most.
	TokenTTL time.Duration
	// AllowTTL and DenyTTL are how long a review of access holds.
	AllowTTL, DenyTTL time.Duration
}

// Access authenticates and authorizes clients.
type Access struct {
	certificates authenticator.Request // nil if none are accepted
	tokens       authenticator.Request
	anonymous    authenticator.Request // nil if nobody is
	decisions    *decisions
	filter       http.Handler // the impersonation of callers with certificates
}

// New returns an Access that asks the apiserver of a client configuration, as the
// identity in it. Without a client authority, certificates are not accepted.
func New(config *rest.Config, clientCA *ClientCA, options Options, registry prometheus.Registerer) (*Access, error) {
	metrics := newMetrics(registry)
	config = rest.CopyConfig(config)
	config.QPS = -1 // reviews have bounds of their own
	config.Wrap(func(way http.RoundTripper) http.RoundTripper { return &counted{way, metrics.total} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for reviews: %w", err)
	}
	review, err := newTokenReview(client.AuthenticationV1())
	if err != nil {
		return nil, err
	}
	a := &Access{
		tokens:    newTokens(review, options.TokenTTL, metrics).requests(),
		decisions: newDecisions(client.AuthorizationV1(), options, metrics),
	}
	if clientCA != nil {
		a.certificates = group.NewAuthenticatedGroupAdder(x509.NewDynamic(clientCA.content.VerifyOptions, x509.CommonNameUserConversion))
	}
	if options.Anonymous {
		a.anonymous = anonymous.NewAuthenticator(nil)
	}
	a.filter = newImpersonation(a)
	return a, nil
}

// retries is how a review is tried again that upstream did not answer.
func retries() *wait.Backoff {
	const first, factor, jitter, steps = 200 * time.Millisecond, 1.5, 0.2, 3
	return &wait.Backoff{Duration: first, Factor: factor, Jitter: jitter, Steps: steps}
}

// Authorize implements authorizer.Authorizer. A decision other than
// authorizer.DecisionAllow comes with an error if upstream could not be asked.
func (a *Access) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	found, err := a.decisions.decide(ctx, attributes)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return found.Decision, found.reason, nil
}

// Allows tells, without asking upstream, whether it is known that a request is allowed.
func (a *Access) Allows(attributes authorizer.Attributes) bool { return a.decisions.allows(attributes) }

// Authenticate tells who sent a request, in kube-apiserver's order: by certificate,
// by token, as nobody. The request is not changed. The error is ErrUnauthenticated or
// ErrUnavailable.
func (a *Access) Authenticate(req *http.Request) (*Caller, error) {
	var refused error
	if a.certificates != nil {
		resp, ok, err := a.certificates.AuthenticateRequest(req)
		if ok {
			return certificateCaller(resp.User, req.TLS.PeerCertificates[0]), nil
		}
		refused = err
	}
	asked := req.WithContext(withAddress(req))
	asked.Header = req.Header.Clone() // authenticators take out the credentials that hold
	resp, ok, err := a.tokens.AuthenticateRequest(asked)
	switch {
	case ok:
		return tokenCaller(resp.User, req.Header), nil
	case isUnavailable(err):
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if refused = errors.Join(refused, err); refused == nil && a.anonymous != nil {
		if resp, ok, err = a.anonymous.AuthenticateRequest(req); ok && err == nil {
			return anonymousCaller(resp.User, req.Header), nil
		}
		refused = err
	}
	if refused != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnauthenticated, refused)
	}
	return nil, ErrUnauthenticated
}
