package read

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// asked is what a read asks for, as far as the right to it depends on that.
type asked struct {
	exchange.Route
	path   string
	labels labels.Selector
	fields fields.Selector
}

func (r *read) asked() asked { return asked{r.Route, r.Path, r.labels, r.fields} }

// Attributes are what the apiserver decides on for a read with a query.
func Attributes(rt exchange.Route, path, query string, u user.Info) (authorizer.Attributes, error) {
	p, err := parseParams(query)
	what := asked{rt, path, p.labels, p.fields}
	return what.attributes(u), err
}

// attributes are what the apiserver would decide on.
func (r *asked) attributes(u user.Info) authorizer.Attributes {
	a := &authorizer.AttributesRecord{
		User: u, Verb: r.Verb, Namespace: r.Namespace, Name: r.Name,
		APIGroup: r.GVR.Group, APIVersion: r.GVR.Version, Resource: r.GVR.Resource,
		ResourceRequest: true, Path: r.path,
	}
	if r.Name != "" {
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
func (rd *Reader) authorize(ctx context.Context, r *read) (refusal *exchange.Response, err error) {
	if r.Identity == nil {
		return nil, nil
	}
	what := r.asked()
	attributes := what.attributes(r.Identity.User)
	decision, reason, err := rd.Options().Access.Authorize(ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil, nil
	case err != nil:
		return nil, Stale
	}
	refusal = r.Fail(forbidden(attributes, reason), exchange.FromProxy)
	refusal.Header.Set("X-Content-Type-Options", "nosniff")
	return refusal, nil
}

// reviewAgain returns the review of an open watch, see watch.Params. Errors other than watch.ErrRevoked
// say that nobody could tell. It keeps as little of the read as it needs.
func (rd *Reader) reviewAgain(r *read) func(context.Context) error {
	req, what := r.Slim(), r.asked()
	return func(ctx context.Context) error {
		caller, err := rd.Options().Access.Authenticate(req.AsHTTP(ctx))
		switch {
		case errors.Is(err, access.ErrUnavailable):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", watch.ErrRevoked, err)
		}
		decision, _, err := rd.Options().Access.Authorize(ctx, what.attributes(caller.User))
		switch {
		case decision == authorizer.DecisionAllow:
			return nil
		case err != nil:
			return err
		}
		return watch.ErrRevoked
	}
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
	s := exchange.Failure(http.StatusForbidden, metav1.StatusReasonForbidden, what+" is forbidden: "+why)
	s.Details = &metav1.StatusDetails{Name: a.GetName(), Group: a.GetAPIGroup(), Kind: a.GetResource()}
	return s
}
