package read

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/query"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// asked is the part of a read that decides whether the caller is allowed to do it.
type asked struct {
	exchange.Route
	path   string
	labels labels.Selector
	fields fields.Selector
}

func (r *read) asked() asked { return asked{r.Route, r.Path, r.Labels, r.Fields} }

// Attributes returns the attributes that the apiserver authorizes for a read with parameters.
func Attributes(rt exchange.Route, path, parameters string, u user.Info) (authorizer.Attributes, error) {
	p, err := query.Parse(parameters)
	what := asked{rt, path, p.Labels, p.Fields}
	return what.attributes(u), err
}

func (r *asked) attributes(u user.Info) authorizer.Attributes {
	a := &authorizer.AttributesRecord{
		User: u, Verb: r.Verb, Namespace: r.Namespace, Name: r.Name,
		APIGroup: r.GVR.Group, APIVersion: r.GVR.Version, Resource: r.GVR.Resource,
		ResourceRequest: true, Path: r.path,
	}
	if r.Name != "" {
		return a // a get ignores selectors
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

// authorize asks whether the caller may do a read, or the user that the caller impersonates, and
// refuses the read if not. If a review has no answer, or the impersonation is in doubt, the read is
// forwarded, and upstream decides.
func (rd *Reader) authorize(ctx context.Context, r *read) (refusal *exchange.Response, err error) {
	if r.Identity == nil {
		return nil, nil
	}
	a := rd.Options().Access
	u, err := a.EffectiveUser(ctx, r.Identity, r.Header)
	switch {
	case errors.Is(err, access.ErrUndecided):
		return nil, Credentials
	case err != nil:
		return nil, Stale
	}
	what := r.asked()
	attributes := what.attributes(u)
	decision, reason, err := a.Authorize(ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil, nil
	case err != nil:
		return nil, Stale
	}
	refusal = r.Fail(exchange.StatusOf(responsewriters.ForbiddenStatusError(attributes, reason)), exchange.FromProxy)
	refusal.Header.Set("X-Content-Type-Options", "nosniff")
	return refusal, nil
}

// reviewAgain returns the review of an open watch, see watch.Params. An error other than
// watch.ErrRevoked means that the review had no answer. The function holds only the part of the
// read that it needs.
func (rd *Reader) reviewAgain(r *read) func(context.Context) error {
	who, what := r.Credentials(), r.asked()
	return func(ctx context.Context) error {
		a, sender := rd.Options().Access, who.AsHTTP(ctx)
		caller, err := a.Authenticate(sender)
		var u user.Info
		if err == nil {
			u, err = a.EffectiveUser(ctx, caller, sender.Header)
		}
		switch {
		case errors.Is(err, access.ErrUnavailable):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", watch.ErrRevoked, err)
		}
		decision, _, err := a.Authorize(ctx, what.attributes(u))
		switch {
		case decision == authorizer.DecisionAllow:
			return nil
		case err != nil:
			return err
		}
		return watch.ErrRevoked
	}
}
