package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// decisionsMax limits remembered decisions, in bytes.
const decisionsMax = 64 << 20

// countsLeast is the shortest time for which a decision that allows counts for an open watch. So a
// watch that has asked for it gets on with its event, whatever the TTL is.
const countsLeast = 5 * time.Second

type decisions struct {
	client  authorizationclient.SubjectAccessReviewInterface
	options Options
	known   *reviewCache[decision]
	reviews *reviews[decision]
}

type decision struct {
	authorizer.Decision
	reason string
	until  time.Time // see Access.Allows
}

func newDecisions(client authorizationclient.AuthorizationV1Interface, options Options) *decisions {
	return &decisions{
		client: client.SubjectAccessReviews(), options: options,
		known: newReviewCache[decision](decisionsMax), reviews: newReviews[decision](),
	}
}

func (d *decisions) decide(
	ctx context.Context, attributes authorizer.Attributes,
) (decision, error) {
	spec := specOf(attributes)
	encoded, err := spec.Marshal() // unambiguous, because each string has a length prefix
	if err != nil {
		return decision{}, err
	}
	q := decisionQuestion{
		of:     d,
		key:    sha256.Sum256(encoded),
		size:   len(encoded),
		spec:   spec,
		client: spec.User,
	}
	if u, ok := attributes.GetUser().(*impersonated); ok {
		q.client = u.by
	}
	return d.reviews.answer(ctx, q)
}

type decisionQuestion struct {
	of     *decisions
	key    key
	size   int // of the encoded spec, in bytes
	spec   *authorizationv1.SubjectAccessReviewSpec
	client string
}

func (q decisionQuestion) known() (found decision, due, ok bool) { return q.of.known.get(q.key) }

func (q decisionQuestion) place() place {
	return place{q.key, q.of.reviews.turns, q.client, q.size}
}

func (q decisionQuestion) review(ctx context.Context) (decision, error) {
	found, err := q.of.review(ctx, q.spec)
	if err != nil {
		return decision{}, err
	}
	ttl, counts := q.of.options.DenyTTL, q.of.options.DenyTTL
	if found.Decision == authorizer.DecisionAllow {
		ttl = q.of.options.AllowTTL
		counts = max(ttl, countsLeast)
	}
	found.until = time.Now().Add(counts)
	q.of.known.put(q.client, q.key, found, len(found.reason), ttl)
	return found, nil
}

func (d *decisions) review(
	ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec,
) (decision, error) {
	asked := &authorizationv1.SubjectAccessReview{Spec: *spec}
	answer, err := persist(ctx, func() (*authorizationv1.SubjectAccessReview, error) {
		return d.client.Create(ctx, asked, metav1.CreateOptions{})
	})
	if err != nil {
		return decision{}, fmt.Errorf("review access: %w", err)
	}
	status := answer.Status
	switch {
	case status.Denied && status.Allowed:
		return decision{}, errors.New("review access: it is both allowed and denied")
	case status.Denied:
		return decision{Decision: authorizer.DecisionDeny, reason: status.Reason}, nil
	case status.Allowed:
		return decision{Decision: authorizer.DecisionAllow, reason: status.Reason}, nil
	}
	return decision{Decision: authorizer.DecisionNoOpinion, reason: status.Reason}, nil
}

// specOf returns the access review of attributes. It writes selectors as strings, as in a query.
// Kube-apiserver parses these strings like a request's selectors, so its authorizers see the same
// selectors. Lists of requirements would be ten times as long and lose some operators.
func specOf(a authorizer.Attributes) *authorizationv1.SubjectAccessReviewSpec {
	spec := &authorizationv1.SubjectAccessReviewSpec{}
	if u := a.GetUser(); u != nil {
		spec.User, spec.UID, spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		for name, values := range u.GetExtra() {
			if spec.Extra == nil {
				spec.Extra = map[string]authorizationv1.ExtraValue{}
			}
			spec.Extra[name] = values
		}
	}
	if !a.IsResourceRequest() {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{
			Path: a.GetPath(),
			Verb: a.GetVerb(),
		}
		return spec
	}
	resource := &authorizationv1.ResourceAttributes{
		Namespace:   a.GetNamespace(),
		Verb:        a.GetVerb(),
		Group:       a.GetAPIGroup(),
		Version:     a.GetAPIVersion(),
		Resource:    a.GetResource(),
		Subresource: a.GetSubresource(),
		Name:        a.GetName(),
	}
	if raw := fieldsOf(a); raw != "" {
		resource.FieldSelector = &authorizationv1.FieldSelectorAttributes{RawSelector: raw}
	}
	requirements, _ := a.GetLabelSelector()
	if raw := labels.NewSelector().Add(requirements...).String(); raw != "" {
		resource.LabelSelector = &authorizationv1.LabelSelectorAttributes{RawSelector: raw}
	}
	spec.ResourceAttributes = resource
	return spec
}

// fieldsOf writes a field selector. It omits requirements with unknown operators. This is safe,
// because a selector only narrows a request.
func fieldsOf(a authorizer.Attributes) string {
	requirements, _ := a.GetFieldSelector()
	var all []fields.Selector
	for _, r := range requirements {
		switch r.Operator {
		case selection.Equals, selection.DoubleEquals, selection.In:
			all = append(all, fields.OneTermEqualSelector(r.Field, r.Value))
		case selection.NotEquals, selection.NotIn:
			all = append(all, fields.OneTermNotEqualSelector(r.Field, r.Value))
		}
	}
	return fields.AndSelectors(all...).String()
}
