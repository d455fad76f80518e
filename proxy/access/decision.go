package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// decisionsMax bounds what is remembered of decisions, in bytes.
const decisionsMax = 16 << 20

// decisions are upstream's on who may read what.
type decisions struct {
	client  authorizationclient.SubjectAccessReviewInterface
	options Options
	known   *outcomes[decision]
	reviews *reviews[decision]
	metrics *metrics
}

type decision struct {
	authorizer.Decision
	reason string // of a refusal
}

func newDecisions(client authorizationclient.AuthorizationV1Interface, options Options, m *metrics) *decisions {
	d := &decisions{
		client: client.SubjectAccessReviews(), options: options, metrics: m,
		known: newOutcomes[decision](decisionsMax), reviews: newReviews[decision](accessResource, m),
	}
	m.show("access", d.known.held)
	return d
}

const accessResource = "subjectaccessreviews"

// decide finds out what upstream decides, or has just decided.
func (d *decisions) decide(ctx context.Context, attributes authorizer.Attributes) (decision, error) {
	spec := specOf(attributes)
	encoded, err := spec.Marshal() // unambiguous: each string is preceded by its length
	if err != nil {
		return decision{}, err
	}
	k := sha256.Sum256(encoded)
	review := func(ctx context.Context) (decision, error) {
		found, err := d.review(ctx, spec)
		if err != nil {
			return decision{}, err
		}
		ttl := d.options.DenyTTL
		if found.Decision == authorizer.DecisionAllow {
			ttl = d.options.AllowTTL
		}
		d.known.put(spec.User, k, found, len(found.reason), ttl)
		return found, nil
	}
	if found, ok := d.known.get(k); ok {
		d.metrics.hits.WithLabelValues(accessResource).Inc()
		if d.known.due(k) {
			d.reviews.begin(spec.User, k, len(encoded), review)
		}
		return found, nil
	}
	return d.reviews.ask(ctx, spec.User, k, len(encoded), func(ctx context.Context) (decision, error) {
		if found, ok := d.known.get(k); ok {
			return found, nil // since the question above
		}
		return review(ctx)
	})
}

// allows tells whether upstream has just allowed it.
func (d *decisions) allows(attributes authorizer.Attributes) bool {
	encoded, err := specOf(attributes).Marshal()
	if err != nil {
		return false
	}
	found, ok := d.known.get(sha256.Sum256(encoded))
	return ok && found.Decision == authorizer.DecisionAllow
}

// review asks upstream.
func (d *decisions) review(ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec) (decision, error) {
	var status authorizationv1.SubjectAccessReviewStatus
	err := persist(ctx, func() error {
		answer, err := d.client.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: *spec}, metav1.CreateOptions{})
		if err == nil {
			status = answer.Status
		}
		return err
	})
	switch {
	case err != nil:
		return decision{}, fmt.Errorf("review access: %w", err)
	case status.Denied && status.Allowed:
		return decision{}, errors.New("review access: it is both allowed and denied")
	case status.Denied:
		return decision{authorizer.DecisionDeny, status.Reason}, nil
	case status.Allowed:
		return decision{authorizer.DecisionAllow, ""}, nil
	}
	return decision{authorizer.DecisionNoOpinion, status.Reason}, nil
}

// specOf is the question that attributes pose.
//
// Selectors are written as in a query: kube-apiserver reads them as it reads those of a
// request, so that its authorizers see what they would see if the request came to it.
// Written as requirements they would be ten times as long, and lack some operators.
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
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.GetPath(), Verb: a.GetVerb()}
		return spec
	}
	resource := &authorizationv1.ResourceAttributes{
		Namespace: a.GetNamespace(), Verb: a.GetVerb(), Group: a.GetAPIGroup(), Version: a.GetAPIVersion(),
		Resource: a.GetResource(), Subresource: a.GetSubresource(), Name: a.GetName(),
	}
	if raw := fieldsOf(a); raw != "" {
		resource.FieldSelector = &authorizationv1.FieldSelectorAttributes{RawSelector: raw}
	}
	if raw := labelsOf(a); raw != "" {
		resource.LabelSelector = &authorizationv1.LabelSelectorAttributes{RawSelector: raw}
	}
	spec.ResourceAttributes = resource
	return spec
}

// fieldsOf writes a field selector. Selectors only narrow a question, so what could not be
// read of one is left out.
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

// labelsOf writes a label selector.
func labelsOf(a authorizer.Attributes) string {
	requirements, _ := a.GetLabelSelector()
	var all strings.Builder
	for i := range requirements {
		if i > 0 {
			all.WriteByte(',')
		}
		all.WriteString(requirements[i].String())
	}
	return all.String()
}
