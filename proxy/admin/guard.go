package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// Access authenticates and authorizes requests. [access.Access] implements it.
type Access interface {
	Authenticate(req *http.Request) (*access.Caller, error)
	Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
}

type refusal struct {
	status int
	why    string
}

func forbidden(why string) *refusal { return &refusal{http.StatusForbidden, why} }

// admit returns a request's sender, which is nil if no authentication is needed, or a refusal. A
// request with credentials needs the right to its path: the nonResourceURLs of a ClusterRole.
func (o *Options) admit(r *http.Request) (*access.Caller, *refusal) {
	path := r.URL.Path
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	covered := func(open string) bool { return covers(open, path) }
	open := reads && slices.ContainsFunc(o.Open, covered)
	switch {
	case o.Restricted && onLoopback(r) && !open: // whatever its headers say
		return nil, forbidden("only adminAuthentication.alwaysAllowPaths are served here, " +
			"because of adminAuthentication.restrictLoopback")
	case o.Everybody && !isLocal(r) && strings.HasPrefix(path, profiles):
		return nil, forbidden("without authentication, profiles are made on a loopback address " +
			"only, as through kubectl port-forward")
	case o.Everybody, isLocal(r), open:
		return nil, nil
	case o.Access == nil:
		return nil, forbidden("this path is served on a loopback address only, " +
			"as through kubectl port-forward, because there is no certificate (tls), " +
			"and credentials are only taken over TLS")
	case r.TLS == nil:
		return nil, forbidden("this path needs credentials, which are only taken over TLS: " +
			"use https, or a loopback address, as through kubectl port-forward")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return nil, forbidden("impersonation is not supported here: leave " + name + " out")
		}
	}
	caller, err := o.Access.Authenticate(r)
	switch {
	case errors.Is(err, access.ErrUnavailable):
		const why = "the apiserver cannot be asked about the credentials"
		return nil, &refusal{http.StatusServiceUnavailable, why}
	case err != nil:
		return nil, &refusal{http.StatusUnauthorized, "this path needs a bearer token " +
			"or a client certificate that the apiserver accepts"}
	}
	verb := strings.ToLower(r.Method)
	attributes := authorizer.AttributesRecord{User: caller.User, Verb: verb, Path: path}
	decision, _, err := o.Access.Authorize(r.Context(), attributes)
	switch {
	case err != nil:
		const why = "the apiserver cannot be asked about access"
		return nil, &refusal{http.StatusServiceUnavailable, why}
	case decision == authorizer.DecisionAllow:
		return caller, nil
	}
	const why = "user %q cannot %s path %q: a ClusterRole with it in its nonResourceURLs allows it"
	return nil, forbidden(fmt.Sprintf(why, caller.User.GetName(), verb, path))
}

// covers reports whether an open path covers a request's: itself, those below it, the page's files.
func covers(open, path string) bool {
	if open == "/" {
		return pageFiles[path] != ""
	}
	return path == open || strings.HasPrefix(path, open+"/")
}

// isLocal reports whether a request comes from this machine or pod. If a header shows that a proxy
// in the pod relays another client's request, isLocal returns false.
func isLocal(r *http.Request) bool {
	for _, relayed := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header[relayed] != nil {
			return false
		}
	}
	return onLoopback(r)
}

func onLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.IP.IsLoopback()
}
