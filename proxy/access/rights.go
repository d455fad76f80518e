package access

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// CheckRights returns an error if the identity of a client configuration may not
// have tokens and access reviewed: no client could be served.
func CheckRights(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for reviews: %w", err)
	}
	for _, needed := range []authorizationv1.ResourceAttributes{
		{Verb: "create", Group: "authentication.k8s.io", Version: "v1", Resource: "tokenreviews"},
		{Verb: "create", Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &needed}}
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask for the right to create %s: %w", needed.Resource, err)
		}
		if !review.Status.Allowed {
			return fmt.Errorf("the proxy may not create %s.%s, without which clients cannot be authenticated: bind its user to the ClusterRole system:auth-delegator",
				needed.Resource, needed.Group)
		}
	}
	return nil
}
