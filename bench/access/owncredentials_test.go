//go:build verify

package access

import (
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// ownToken is the token of a proxy's service account, in a file. It can be revoked.
type ownToken struct {
	file   string
	secret *corev1.Secret // the token is bound to it
	caller *caller
}

// renew replaces the token in the file, but does not revoke the former one.
func (o *ownToken) renew(t *testing.T, w *world) (former ownToken) {
	t.Helper()
	former = *o
	core := w.admin.CoreV1()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "own-"}}
	secret, err := core.Secrets(teamA).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.secret = secret
	r, err := core.ServiceAccounts(teamA).CreateToken(t.Context(), "own", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: o.secret.Name, UID: o.secret.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.caller = &caller{name: "the proxy itself", token: r.Status.Token}
	if err := os.WriteFile(o.file, []byte(r.Status.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	return former
}

// revoke returns when the apiserver refuses the token.
func (o *ownToken) revoke(t *testing.T, w *world) {
	t.Helper()
	if err := w.admin.CoreV1().Secrets(teamA).Delete(t.Context(), o.secret.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Within(t, limit, "the token is revoked", func() bool { return w.server.must(t, o.caller, request{target: "/version"}).status == unknown })
}

// If the apiserver refuses the proxy's own token, clients do not notice if there is a new one.
// Without a new one, the proxy is not ready, and clients with certificates get a 503. Clients with
// tokens are answered by the apiserver.
func TestOwnTokenIsRefused(t *testing.T) {
	w := sharedWorld(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
	if _, err := w.admin.CoreV1().ServiceAccounts(teamA).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	everything := rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}
	if err := w.api.Allow(t.Context(), "", "own", cluster.Users("system:serviceaccount:"+teamA+":own"), everything); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	own, kubeconfig := ownToken{file: filepath.Join(dir, "token")}, filepath.Join(dir, "kubeconfig")
	own.renew(t, w)
	if err := cluster.WriteKubeconfig(kubeconfig, w.api.URL, w.api.CA, clientcmdapi.AuthInfo{TokenFile: own.file}); err != nil {
		t.Fatal(err)
	}
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, TLS: true, Settings: "drain: 100ms\n", Args: []string{"--authentication=delegated"}})
	f := &front{server: newServer(t, "proxy", proxy.URL, proxy.CA), proxy: proxy}
	ready := func(status int) {
		t.Helper()
		probe := cluster.EndpointT(t, "admin", proxy.AdminURL, "", nil)
		cluster.Within(t, limit, "another readiness", func() bool { return probe.GetT(t, "/readyz", nil).Status == status })
	}
	const writes, times = "/api/v1/namespaces/" + teamA + "/configmaps", 4
	requests := []request{
		{target: "/version"},
		{target: "/api/v1/namespaces/" + teamA + "/pods/one"},
		{target: "/api/v1/namespaces/" + teamA + "/pods?labelSelector=a%3Db"},
		{target: writes, method: http.MethodPost, body: `{"metadata":{"generateName":"own-"}}`},
	}
	// all sends all requests four times at once. Each must succeed, or be refused for a while.
	all := func(when, name string, succeeds bool) {
		t.Helper()
		var sent sync.WaitGroup
		for i := range times * len(requests) {
			sent.Go(func() {
				got, err := f.ask(t.Context(), w.callers[name], requests[i%len(requests)])
				refused := got.status == http.StatusServiceUnavailable && got.header.Get("Retry-After") != ""
				if err != nil || succeeds != (got.status/100 == 2) || !succeeds && !refused {
					t.Errorf("%s, %s: %s: %d %v", when, name, requests[i%len(requests)].target, got.status, err)
				}
			})
		}
		sent.Wait()
	}
	all("at first", "certificate", true)
	all("at first", "reader", true)
	former := own.renew(t, w)
	former.revoke(t, w)
	all("after a renewal", "certificate", true)
	ready(http.StatusOK)

	own.revoke(t, w)
	all("without a token", "certificate", false)
	all("without a token", "reader", true)
	ready(http.StatusInternalServerError)

	own.renew(t, w)
	ready(http.StatusOK)
	all("with a token again", "certificate", true)
}
