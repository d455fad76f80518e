package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Users returns subjects for a role binding.
func Users(names ...string) []rbacv1.Subject { return subjects(rbacv1.UserKind, names) }

// Groups returns subjects for a role binding.
func Groups(names ...string) []rbacv1.Subject { return subjects(rbacv1.GroupKind, names) }

func subjects(kind string, names []string) (all []rbacv1.Subject) {
	for _, name := range names {
		all = append(all, rbacv1.Subject{Kind: kind, Name: name, APIGroup: rbacv1.GroupName})
	}
	return all
}

// Allow grants rules to subjects in a namespace, or everywhere if namespace is empty. The role and
// its binding have the given name.
func (s *APIServer) Allow(ctx context.Context, namespace, name string, to []rbacv1.Subject, rules ...rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	rbac := s.Client().RbacV1()
	var roleErr, bindingErr error
	if namespace == "" {
		_, roleErr = rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		_, bindingErr = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: to, RoleRef: ref}, metav1.CreateOptions{})
	} else {
		ref.Kind = "Role"
		_, roleErr = rbac.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		_, bindingErr = rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: to, RoleRef: ref}, metav1.CreateOptions{})
	}
	return errors.Join(roleErr, bindingErr)
}

// AwaitRights waits until the apiserver uses the rights, for at most Limit. The apiserver reads the objects of each
// kind in the order of their creation.
func (s *APIServer) AwaitRights(ctx context.Context, user string, rights ...authorizationv1.ResourceAttributes) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	reviews := s.Client().AuthorizationV1().SubjectAccessReviews()
	for _, may := range rights {
		for allowed := false; !allowed; {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &may}}
			review, err := reviews.Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("%s may not %s %s: %w", user, may.Verb, may.Resource, err)
			}
			if allowed = review.Status.Allowed; !allowed {
				Pause(ctx, 20*time.Millisecond)
			}
		}
	}
	return nil
}
