package access

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	reading    = []string{"get", "list", "watch"}
	namespaced = []string{"pods", "configmaps", "widgets"}
	everywhere = []string{"nodes", "namespaces"}
)

// grant gives the users of the world their rights. One proxy has the rights in config/rbac.yaml and
// config/rbac-impersonation.yaml, because its user is the service account in these files. Another one may not
// read configmaps.
func (w *world) grant(ctx context.Context, tb testing.TB) error {
	tb.Helper()
	args := []string{"--kubeconfig", w.api.Kubeconfig, "create"}
	for _, file := range []string{"rbac.yaml", "rbac-impersonation.yaml"} {
		args = append(args, "--filename", filepath.Join(cluster.Root(), "config", file))
	}
	if out, err := exec.CommandContext(ctx, cluster.KubectlT(tb), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl create: %w\n%s", err, out)
	}
	const impersonate = "impersonate"
	writing := []rbacv1.PolicyRule{
		rule([]string{"create", "delete", "patch"}, []string{"configmaps"}),
		rule([]string{"create", "get", "patch"}, []string{"pods/exec", "pods/portforward", "pods/status", "pods/log"}),
	}
	var errs []error
	for _, a := range []struct {
		namespace, name string
		to              []rbacv1.Subject
		rules           []rbacv1.PolicyRule
	}{
		{"", "proxy", cluster.Users(proxyUser), []rbacv1.PolicyRule{
			rule(reading, []string{"widgets"}), // the file cannot know this resource
			{APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{impersonate}, Resources: []string{"userextras/scopes"}},
		}},
		{"", "poor proxy", cluster.Users(poorProxy), []rbacv1.PolicyRule{
			rule(reading, append(everywhere, "pods", "widgets")),
			{APIGroups: []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}, Verbs: reading, Resources: []string{"*"}},
			{APIGroups: []string{"*"}, Verbs: []string{"create", impersonate}, Resources: []string{"*"}},
		}},
		{"kube-system", "poor proxy", cluster.Users(poorProxy), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"}, "extension-apiserver-authentication")}},
		{teamA, "reader", append(cluster.Users("reader", robotUser), cluster.Groups(targetGroup)...), append(writing, rule(reading, namespaced))},
		{teamA, "one", cluster.Users("one"), []rbacv1.PolicyRule{rule(reading, namespaced, "one")}},
		{"", "one", cluster.Users("one"), []rbacv1.PolicyRule{rule(reading, []string{"namespaces"}, teamA), rule(reading, []string{"nodes"}, "n1")}},
		{teamA, "lists", cluster.Users("verbs"), []rbacv1.PolicyRule{rule([]string{"list"}, namespaced)}},
		{teamB, "watches", cluster.Users("verbs"), []rbacv1.PolicyRule{rule([]string{"watch"}, namespaced)}},
		{"", "gets", cluster.Users("verbs"), []rbacv1.PolicyRule{rule([]string{"get"}, everywhere)}},
		{"", "certified", cluster.Groups(certified), append(writing, rule(reading, append(namespaced, "namespaces")))},
		{teamB, "mates", cluster.Groups("system:serviceaccounts:" + teamB), []rbacv1.PolicyRule{rule(reading, namespaced)}},
		{teamB, "public", cluster.Groups("system:unauthenticated"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{"default", "smugglers", cluster.Users("bob", "carol"), []rbacv1.PolicyRule{rule([]string{"list"}, []string{"configmaps"})}},
		{teamA, "leaver", cluster.Users("leaver"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{"", "delegates", cluster.Users("delegate"), []rbacv1.PolicyRule{rule([]string{impersonate}, []string{"users"}, "reader")}},
		{"", "constrained", cluster.Users("constrained"), []rbacv1.PolicyRule{
			{APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{"impersonate:user-info"}, Resources: []string{"users"}, ResourceNames: []string{"reader"}},
			rule([]string{"impersonate-on:user-info:list"}, namespaced),
		}},
		{teamA, "carl", cluster.Users("carl"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{teamA, "account", cluster.Users("system:serviceaccount:" + teamB + ":leaver"), []rbacv1.PolicyRule{rule(reading, []string{"configmaps"})}},
		{"", "impersonators", append(cluster.Users("impersonator"), cluster.Groups(impersonators)...), []rbacv1.PolicyRule{
			rule([]string{impersonate}, []string{"users"}, "reader", "target"),
			rule([]string{impersonate}, []string{"groups"}, targetGroup),
			rule([]string{impersonate}, []string{"serviceaccounts"}, "robot"),
			{
				APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{impersonate},
				Resources: []string{"uids", "userextras/scopes"},
			},
		}},
	} {
		errs = append(errs, w.api.Allow(ctx, a.namespace, a.name, a.to, a.rules...))
	}
	// The binding refers to a role that does not exist. The apiserver's refusal names it.
	_, err := w.admin.RbacV1().RoleBindings(teamA).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "dangling"}, Subjects: cluster.Users("dangling"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "no-such-role"},
	}, metav1.CreateOptions{})
	return errors.Join(append(errs, err)...)
}

// rule allows verbs on resources in the groups that the tests read. With names, it allows only
// objects with these names.
func rule(verbs, resources []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"", widgets.Group}, Verbs: verbs, Resources: resources, ResourceNames: names}
}
