package chart

import (
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// If the proxy may impersonate a client with a certificate, the client's forwarded requests arrive
// as requests of that client. Otherwise they do not arrive.
func TestImpersonation(t *testing.T) {
	w := sharedWorld(t)
	p := w.proxyWithRights(t, `{cachedResources: [pods],
		rbac: {impersonation: {enabled: true, users: [jane], groups: [developers, "system:authenticated"]}}}`)
	err := w.api.Allow(t.Context(), "", "writer", cluster.Groups("developers"),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}})
	must(t, err)
	w.awaitRights(t, proxyIdentity, authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users", Name: "jane"})

	create := func(user string) error {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"}}
		core := w.certified(t, p, user, "developers").CoreV1().RESTClient()
		return core.Post().Namespace(namespace).Resource("configmaps").Body(configMap).MaxRetries(0).Do(t.Context()).Error()
	}
	if err := create("jane"); err != nil {
		t.Error(err)
	}
	if err := create("john"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("the proxy may not impersonate john, and he got %v", err)
	}
	cluster.Within(t, limit, "a record of the created configmap", func() bool {
		for _, r := range w.audit.PeekT(t) {
			if r.Verb == "create" && r.ObjectRef.Resource == "configmaps" && r.ObjectRef.Namespace == namespace && r.ResponseStatus.Code == 201 && r.ImpersonatedUser != nil {
				if r.User.Username != proxyIdentity || r.ImpersonatedUser.Username != "jane" {
					t.Errorf("it arrived as %s by %s", r.ImpersonatedUser.Username, r.User.Username)
				}
				return true
			}
		}
		return false
	})
}

// certified returns a client with a certificate from the cluster's CA.
func (w *world) certified(t *testing.T, p *cluster.Proxy, user string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	config := p.RESTConfig()
	config.CertData, config.KeyData = cluster.PEM(w.api.AuthorityT(t).SignT(t, time.Hour, user, groups...))
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}
