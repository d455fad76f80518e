package access

import (
	"context"
	"errors"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var (
	reading    = []string{"get", "list", "watch"}
	namespaced = []string{"pods", "configmaps", "widgets"}
	everywhere = []string{"nodes", "namespaces"}
)

// grant gives the users of the world their rights. The proxies get those of config/rbac.yaml, one of them less.
func (w *world) grant(ctx context.Context) error {
	g, err := readGrants()
	if err != nil {
		return err
	}
	const impersonate = "impersonate"
	writing := []rbacv1.PolicyRule{
		rule([]string{"create", "delete", "patch"}, []string{"configmaps"}),
		rule([]string{"create", "get", "patch"}, []string{"pods/exec", "pods/portforward", "pods/status", "pods/log"}),
	}
	errs := []error{
		g.give(ctx, w.admin, proxyUser),
		g.without("configmaps", "pods", "widgets", "nodes", "namespaces", "customresourcedefinitions", "apiservices").give(ctx, w.admin, poorProxy),
	}
	for _, a := range []struct {
		namespace, name string
		to              []rbacv1.Subject
		rules           []rbacv1.PolicyRule
	}{
		{"", "proxies", users(proxyUser, poorProxy), []rbacv1.PolicyRule{
			rule(reading, []string{"widgets"}), // what the file cannot know
			{APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{impersonate}, Resources: []string{"userextras/scopes"}},
		}},
		{teamA, "reader", append(users("reader", robotUser), groups(targetGroup)...), append(writing, rule(reading, namespaced))},
		{teamA, "one", users("one"), []rbacv1.PolicyRule{rule(reading, namespaced, "one")}},
		{"", "one", users("one"), []rbacv1.PolicyRule{rule(reading, []string{"namespaces"}, teamA), rule(reading, []string{"nodes"}, "n1")}},
		{teamA, "lists", users("verbs"), []rbacv1.PolicyRule{rule([]string{"list"}, namespaced)}},
		{teamB, "watches", users("verbs"), []rbacv1.PolicyRule{rule([]string{"watch"}, namespaced)}},
		{"", "gets", users("verbs"), []rbacv1.PolicyRule{rule([]string{"get"}, everywhere)}},
		{"", "certified", groups(certified), append(writing, rule(reading, append(namespaced, "namespaces")))},
		{teamB, "mates", groups("system:serviceaccounts:" + teamB), []rbacv1.PolicyRule{rule(reading, namespaced)}},
		{teamB, "public", groups("system:unauthenticated"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{teamA, "crowd", groups("crowd"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{teamA, "leaver", users("leaver"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{teamA, "carl", users("carl"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{teamA, "account", users("system:serviceaccount:" + teamB + ":leaver"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{"", "impersonators", append(users("impersonator"), groups(impersonators)...), []rbacv1.PolicyRule{
			rule([]string{impersonate}, []string{"users"}, "reader", "target"),
			rule([]string{impersonate}, []string{"groups"}, targetGroup),
			{
				APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{impersonate},
				Resources: []string{"uids", "userextras/scopes"},
			},
		}},
	} {
		errs = append(errs, allow(ctx, w.admin, a.namespace, a.name, a.to, a.rules...))
	}
	// The apiserver's refusal names the role that is not there.
	_, err = w.admin.RbacV1().RoleBindings(teamA).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "dangling"}, Subjects: users("dangling"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "no-such-role"},
	}, metav1.CreateOptions{})
	return errors.Join(append(errs, err)...)
}

// without is the rights without that to read a resource, and for everything only those to read the others.
func (g grants) without(resource string, others ...string) grants {
	less := g
	less.clusterRoles = nil
	for _, role := range g.clusterRoles {
		role = *role.DeepCopy()
		role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 1 && r.Resources[0] == resource })
		for i := range role.Rules {
			r := &role.Rules[i]
			if slices.Contains(r.Resources, rbacv1.ResourceAll) {
				r.Resources = others
			}
			r.Resources = slices.DeleteFunc(slices.Clone(r.Resources), func(name string) bool { return name == resource })
		}
		less.clusterRoles = append(less.clusterRoles, role)
	}
	return less
}

func users(names ...string) []rbacv1.Subject { return subjects(rbacv1.UserKind, names) }

func groups(names ...string) []rbacv1.Subject { return subjects(rbacv1.GroupKind, names) }

func subjects(kind string, names []string) (all []rbacv1.Subject) {
	for _, name := range names {
		all = append(all, rbacv1.Subject{Kind: kind, Name: name, APIGroup: rbacv1.GroupName})
	}
	return all
}

// rule lets verbs be done to resources of the groups that the tests read, under some names only if there are any.
func rule(verbs, resources []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"", widgets.Group}, Verbs: verbs, Resources: resources, ResourceNames: names}
}

// allow gives subjects rules, everywhere or in a namespace. The role and its binding have the same name.
func allow(ctx context.Context, client kubernetes.Interface, namespace, name string, to []rbacv1.Subject, rules ...rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	rbac := client.RbacV1()
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
