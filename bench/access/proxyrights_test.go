package access

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	strictyaml "sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// grants are the objects in config/rbac.yaml and config/rbac-impersonation.yaml that give the proxy
// its rights.
type grants struct {
	clusterRoles []rbacv1.ClusterRole
	roles        []rbacv1.Role
	bindings     []rbacv1.ClusterRoleBinding
	local        []rbacv1.RoleBinding
}

func readGrants() (g grants, err error) {
	for _, file := range []string{"rbac.yaml", "rbac-impersonation.yaml"} {
		content, err := os.ReadFile(filepath.Join(cluster.Root(), "config", file))
		if err != nil {
			return g, err
		}
		if err := g.read(content); err != nil {
			return g, fmt.Errorf("%s: %w", file, err)
		}
	}
	return g, nil
}

func (g *grants) read(content []byte) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var is metav1.TypeMeta
		if err := strictyaml.Unmarshal(document, &is); err != nil {
			return err
		}
		switch is.Kind {
		case "ClusterRole":
			err = appendStrictly(&g.clusterRoles, document)
		case "Role":
			err = appendStrictly(&g.roles, document)
		case "ClusterRoleBinding":
			err = appendStrictly(&g.bindings, document)
		case "RoleBinding":
			err = appendStrictly(&g.local, document)
		}
		if err != nil {
			return err
		}
	}
}

func appendStrictly[T any](to *[]T, document []byte) error {
	var object T
	if err := strictyaml.UnmarshalStrict(document, &object); err != nil {
		return err
	}
	*to = append(*to, object)
	return nil
}

// give grants the rights to a user instead of the file's subject. The user's name is a prefix of
// the names of the roles and bindings.
func (g grants) give(ctx context.Context, client kubernetes.Interface, user string) error {
	own := func(meta *metav1.ObjectMeta) { meta.Name = user + ":" + meta.Name }
	ref := func(r *rbacv1.RoleRef, namespace string) {
		if r.Kind == "ClusterRole" && slices.ContainsFunc(g.clusterRoles, func(c rbacv1.ClusterRole) bool { return c.Name == r.Name }) ||
			r.Kind == "Role" && slices.ContainsFunc(g.roles, func(l rbacv1.Role) bool { return l.Name == r.Name && l.Namespace == namespace }) {
			r.Name = user + ":" + r.Name
		}
	}
	var errs []error
	done := func(err error) { errs = append(errs, err) }
	rbac := client.RbacV1()
	for _, b := range g.bindings {
		own(&b.ObjectMeta)
		ref(&b.RoleRef, "")
		b.Subjects = cluster.Users(user)
		_, err := rbac.ClusterRoleBindings().Create(ctx, &b, metav1.CreateOptions{})
		done(err)
	}
	for _, b := range g.local {
		own(&b.ObjectMeta)
		ref(&b.RoleRef, b.Namespace)
		b.Subjects = cluster.Users(user)
		_, err := rbac.RoleBindings(b.Namespace).Create(ctx, &b, metav1.CreateOptions{})
		done(err)
	}
	for _, r := range g.clusterRoles {
		own(&r.ObjectMeta)
		_, err := rbac.ClusterRoles().Create(ctx, &r, metav1.CreateOptions{})
		done(err)
	}
	for _, r := range g.roles {
		own(&r.ObjectMeta)
		_, err := rbac.Roles(r.Namespace).Create(ctx, &r, metav1.CreateOptions{})
		done(err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("rights of %s: %w", user, err)
	}
	return nil
}
