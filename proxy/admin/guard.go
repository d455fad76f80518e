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
	Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error)
}

// guard decides which requests the admin endpoints serve. A request on a loopback address comes
// from this machine or pod, for example through a port-forward, and is served. Any other request
// needs credentials, over TLS, and the right to its path: the nonResourceURLs of a ClusterRole. The
// kubelet's probes have no credentials, so some paths are open to everybody.
type guard struct {
	everybody bool     // serves everybody without authentication
	open      []string // paths
	access    Access   // nil without TLS, because credentials are accepted only over TLS
	// restricted means that others than operators reach loopback: only open is served there.
	restricted bool
}

type refusal struct {
	status int
	why    string
}

// admit returns a request's sender, which is nil if no authentication is needed, or a refusal.
func (g *guard) admit(r *http.Request) (*access.Caller, *refusal) {
	open := !isUnsafe(r) && slices.ContainsFunc(g.open, func(path string) bool { return covers(path, r.URL.Path) })
	switch {
	case g.restricted && onLoopback(r) && !open: // whatever its headers say
		return nil, &refusal{http.StatusForbidden, "only adminAuthentication.alwaysAllowPaths are served here, because of adminAuthentication.restrictLoopback"}
	case isLocal(r):
		return nil, nil
	case g.everybody:
		if strings.HasPrefix(r.URL.Path, profiles) {
			return nil, &refusal{http.StatusForbidden, "without authentication, profiles are made on a loopback address only, as through kubectl port-forward"}
		}
		return nil, nil
	case open:
		return nil, nil
	case g.access == nil:
		return nil, &refusal{http.StatusForbidden, "this path is served on a loopback address only, as through kubectl port-forward, because there is no certificate (tls), and credentials are only taken over TLS"}
	case r.TLS == nil:
		return nil, &refusal{http.StatusForbidden, "this path needs credentials, which are only taken over TLS: use https, or a loopback address, as through kubectl port-forward"}
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return nil, &refusal{http.StatusForbidden, "impersonation is not supported here: leave " + name + " out"}
		}
	}
	caller, err := g.access.Authenticate(r)
	switch {
	case errors.Is(err, access.ErrUnavailable):
		return nil, &refusal{http.StatusServiceUnavailable, "the apiserver cannot be asked about the credentials"}
	case err != nil:
		return nil, &refusal{http.StatusUnauthorized, "this path needs a bearer token or a client certificate that the apiserver accepts"}
	}
	verb := strings.ToLower(r.Method)
	decision, _, err := g.access.Authorize(r.Context(), authorizer.AttributesRecord{User: caller.User, Verb: verb, Path: r.URL.Path})
	switch {
	case decision == authorizer.DecisionAllow && err == nil:
		return caller, nil
	case err != nil:
		return nil, &refusal{http.StatusServiceUnavailable, "the apiserver cannot be asked about access"}
	}
	return nil, &refusal{http.StatusForbidden, fmt.Sprintf("user %q cannot %s path %q: a ClusterRole with it in its nonResourceURLs allows it", caller.User.GetName(), verb, r.URL.Path)}
}

// covers reports whether an open path covers a request's: itself, those below it, the page's files.
func covers(open, path string) bool {
	return path == open || open != "/" && strings.HasPrefix(path, open+"/") || open == "/" && pageFiles[path] != ""
}

func isUnsafe(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

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
