package allowed

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// resource is a collection that the tests read.
type resource struct {
	schema.GroupVersionResource
	kind string
}

var (
	configmaps = resource{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap"}
	pods       = resource{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod"}
	secrets    = resource{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "Secret"}
	events     = resource{schema.GroupVersionResource{Version: "v1", Resource: "events"}, "Event"}
	namespaces = resource{schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "Namespace"}
	widgets    = resource{schema.GroupVersionResource{Group: "allowed.test", Version: "v1", Resource: "widgets"}, "Widget"}
)

// path returns the path of the collection in a namespace, or in all if namespace is empty.
func (r resource) path(namespace string) string {
	root := "/api/v1"
	if r.Group != "" {
		root = "/apis/" + r.Group + "/" + r.Version
	}
	if namespace != "" {
		root += "/namespaces/" + namespace
	}
	return root + "/" + r.Resource
}

// tokenOf returns the token of a user in the token file.
func tokenOf(user string) string { return user + "-token" }

// tokenFile returns a file with the tokens of all users.
func tokenFile() string {
	var b strings.Builder
	for _, name := range append(unionUsers(),
		"first", "second", "leak", "nothing", "deputy", "stranger", "known", "unknown", "both", "informed0", "informed1", "informed2",
	) {
		fmt.Fprintf(&b, "%s,%s,%s-uid\n", tokenOf(name), name, name)
	}
	fmt.Fprintf(&b, "%s,mate,mate-uid,mates\n", tokenOf("mate"))
	fmt.Fprintf(&b, "%s,many,many-uid,few\n", tokenOf("many-old"))
	fmt.Fprintf(&b, "%s,many,many-uid,\"few,more\"\n", tokenOf("many-new"))
	return b.String()
}

// impersonating is the right to act as a user.
func impersonating(user string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Verbs: []string{"impersonate"}, Resources: []string{"users"}, ResourceNames: []string{user}}
}

// roles are the ClusterRoles that the tests bind in namespaces.
func roles() map[string]rbacv1.PolicyRule {
	rule := func(verbs string, resources string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: []string{"", widgets.Group}, Verbs: strings.Fields(verbs), Resources: strings.Fields(resources), ResourceNames: names,
		}
	}
	const reading, viewed = "get list watch", "configmaps pods widgets"
	return map[string]rbacv1.PolicyRule{
		"reads":    rule(reading, viewed+" secrets"),
		"configs":  rule(reading, "configmaps"),
		"pods":     rule(reading, "pods"),
		"events":   rule(reading, "events"),
		"lists":    rule("get list", viewed),
		"watches":  rule("get watch", viewed),
		"common":   rule(reading, viewed, common),
		"itself":   rule("get", "namespaces"),
		"ordinary": rule(reading+" create delete", "configmaps"),
	}
}

// prepare creates what all tests need.
func (w *world) prepare(ctx context.Context) error {
	var errs []error
	for name, rule := range roles() {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
		_, err := w.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	errs = append(errs, w.server.Define(ctx, widgets.GroupVersionResource, widgets.kind, map[string]any{"spec": anything}, nil))
	return errors.Join(errs...)
}

// namespace creates a namespace and returns its mark. Without a name, it is named by its mark.
func (w *world) namespace(ctx context.Context, name string) (namespace, mark string, err error) {
	namespace, mark = w.marks.add(name)
	_, err = w.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: map[string]string{"note": mark}, Labels: map[string]string{"app": "web"}},
	}, metav1.CreateOptions{})
	return namespace, mark, err
}

// common is a name that objects of many namespaces have.
const common = "common"

// object returns an object with a mark.
func object(r resource, name, app, mark string) *unstructured.Unstructured {
	text := map[string]any{"text": "of " + mark + "."}
	o := map[string]any{
		"apiVersion": r.GroupVersion().String(), "kind": r.kind,
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": app}, "annotations": map[string]any{"note": "n-" + mark}},
	}
	switch r {
	case configmaps:
		o["data"] = text
	case secrets:
		o["stringData"] = text
	case pods:
		o["spec"] = map[string]any{"nodeName": "node-" + mark, "containers": []any{map[string]any{"name": "main", "image": "i-" + mark}}}
	case widgets:
		o["spec"] = text
	}
	return &unstructured.Unstructured{Object: o}
}

func (w *world) create(ctx context.Context, r resource, namespace string, o *unstructured.Unstructured) error {
	_, err := w.dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", r.Resource, namespace, o.GetName(), err)
	}
	return nil
}

func (w *world) remove(ctx context.Context, r resource, namespace, name string) error {
	return w.dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Delete(ctx, name, *metav1.NewDeleteOptions(0))
}

// bind gives a role to a subject in a namespace. The binding has the names of both.
func (w *world) bind(ctx context.Context, namespace, role string, to rbacv1.Subject) error {
	_, err := w.admin.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "." + to.Name}, Subjects: []rbacv1.Subject{to},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}, metav1.CreateOptions{})
	return err
}

func (w *world) unbind(ctx context.Context, namespace, role, of string) error {
	return w.admin.RbacV1().RoleBindings(namespace).Delete(ctx, role+"."+of, metav1.DeleteOptions{})
}

// settled waits until the apiserver uses all bindings that were written before. It reads them in
// their order.
func (w *world) settled(ctx context.Context) error {
	last := cluster.UniqueName("last")
	if err := w.bind(ctx, "default", "watches", cluster.Users(last)[0]); err != nil {
		return err
	}
	return w.server.AwaitRights(ctx, last, authorizationv1.ResourceAttributes{Namespace: "default", Verb: "watch", Version: "v1", Resource: "configmaps"})
}
