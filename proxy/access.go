package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// identity is who a request acts as. Without authentication it is nil: the request
// acts as the proxy.
type identity struct {
	*access.Caller
	// actsAs is whom the proxy has to impersonate upstream: the bearer of a
	// certificate, or whom that one impersonates. It is nil for others, whose own
	// credentials are forwarded.
	actsAs user.Info
}

// name is the user that limits are counted by.
func (i *identity) name() string {
	if i == nil {
		return ""
	}
	return i.User.GetName()
}

// key is the same for requests with the same credentials only.
func (i *identity) key() string {
	if i == nil {
		return ""
	}
	return i.Key()
}

// actsAsAnother tells whether the proxy has to impersonate somebody.
func (i *identity) actsAsAnother() bool { return i != nil && i.actsAs != nil }

// authenticate finds out who sent a request. Without a refusal, req.identity tells.
func (s *Server) authenticate(ctx context.Context, req *request) (refusal *response) {
	asked := req.asHTTP(ctx)
	caller, err := s.options.Load().Access.Authenticate(asked)
	switch {
	case errors.Is(err, access.ErrUnavailable):
		return req.fail(reviewFailed(), fromProxy)
	case err != nil:
		refusal = req.fail(failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized"), fromProxy)
		refusal.close = true // its connection counts for nobody
		return refusal
	}
	req.identity = &identity{Caller: caller}
	if !caller.Certificate {
		return nil
	}
	req.identity.actsAs = caller.User
	if !req.impersonates() {
		return nil
	}
	as, refused := s.options.Load().Access.Impersonate(caller, asked)
	if refused != nil {
		resp := newResponse(refused.Code, fromProxy)
		resp.header, resp.bytes = refused.Header, refused.Body
		req.stamp(resp)
		return resp
	}
	req.identity.actsAs = as
	return nil
}

// asHTTP is a request as the access package reads it. Its body is not there.
func (r *request) asHTTP(ctx context.Context) *http.Request {
	u, err := url.ParseRequestURI(r.target)
	if err != nil {
		u = &url.URL{Path: r.path, RawQuery: r.query}
	}
	asked := &http.Request{Method: r.method, URL: u, RequestURI: r.target, Host: r.host, RemoteAddr: r.address(), Header: r.header, TLS: r.tls}
	return asked.WithContext(ctx)
}

// attributes are what the apiserver would decide on.
func (r *read) attributes(u user.Info) authorizer.Attributes {
	a := &authorizer.AttributesRecord{
		User: u, Verb: r.verb, Namespace: r.namespace, Name: r.name,
		APIGroup: r.gvr.Group, APIVersion: r.gvr.Version, Resource: r.gvr.Resource,
		ResourceRequest: true, Path: r.path,
	}
	if r.name != "" {
		return a // selectors of a get select nothing
	}
	if r.fields != nil {
		a.FieldSelectorRequirements = r.fields.Requirements()
		if name, ok := r.fields.RequiresExactMatch("metadata.name"); ok && len(content.IsPathSegmentName(name)) == 0 {
			a.Name = name
		}
	}
	if r.labels != nil {
		a.LabelSelectorRequirements, _ = r.labels.Requirements()
	}
	return a
}

// authorize asks whether a read may be answered to its caller. If it may not, there
// is a refusal; if nobody can tell, upstream has to answer, which asks itself.
func (s *Server) authorize(ctx context.Context, r *read) (refusal *response, err error) {
	if r.identity == nil {
		return nil, nil
	}
	attributes := r.attributes(r.identity.User)
	decision, reason, err := s.options.Load().Access.Authorize(ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil, nil
	case err != nil:
		return nil, Stale
	}
	refusal = r.request.fail(forbidden(attributes, reason), fromProxy)
	refusal.header.Set("X-Content-Type-Options", "nosniff")
	return refusal, nil
}

// errRevoked says that the client of an open watch may not go on.
var errRevoked = errors.New("access was revoked")

// reviewAgain tells whether the client of an open watch may go on. Errors other than
// errRevoked say that nobody could tell.
func (s *Server) reviewAgain(ctx context.Context, r *read) error {
	caller, err := s.options.Load().Access.Authenticate(r.asHTTP(ctx))
	switch {
	case errors.Is(err, access.ErrUnavailable):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errRevoked, err)
	}
	decision, _, err := s.options.Load().Access.Authorize(ctx, r.attributes(caller.User))
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return err
	}
	return errRevoked
}

// markup is what the apiserver does not repeat as it is in the text of a refusal.
var markup = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

// forbidden says that the caller may not have a read.
func forbidden(a authorizer.Attributes, reason string) metav1.Status {
	where := "at the cluster scope"
	if ns := a.GetNamespace(); ns != "" {
		where = fmt.Sprintf("in the namespace %q", ns)
	}
	why := markup.Replace(fmt.Sprintf("User %q cannot %s resource %q in API group %q %s",
		a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetAPIGroup(), where))
	if reason != "" {
		why += ": " + reason
	}
	what := a.GetResource()
	if a.GetAPIGroup() != "" {
		what += "." + a.GetAPIGroup()
	}
	if a.GetName() != "" {
		what += fmt.Sprintf(" %q", a.GetName())
	}
	s := failure(http.StatusForbidden, metav1.StatusReasonForbidden, what+" is forbidden: "+why)
	s.Details = &metav1.StatusDetails{Name: a.GetName(), Group: a.GetAPIGroup(), Kind: a.GetResource()}
	return s
}

// reviewFailed says that a client's credentials could not be reviewed.
func reviewFailed() metav1.Status {
	s := failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the upstream apiserver cannot be asked to review the credentials of the request")
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return s
}
