package access

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	smuggleMarker     = "nobody-may-read-this"
	smugglePublic     = "all-may-read-this"
	smuggleAgent      = "smuggle-attempt-"
	smuggleAdminAgent = "smuggle-admin"
	smuggleProxyUser  = "smuggle-proxy"
	// The proxy is in system:masters, so that nothing of its own is refused to who gets at it.
	smuggleTokens = "bobs-token,bob,bob\nproxys-token," + smuggleProxyUser + "," + smuggleProxyUser + ",\"system:masters\"\n"
	smuggleCached = "/api/v1/namespaces/default/configmaps?resourceVersion=0" // what bob and carol may have
	smuggleLimit  = 30 * time.Second
)

// smuggleCaller is a client with few rights, or none.
type smuggleCaller struct {
	name        string
	token       string
	certificate *tls.Certificate
}

// smuggleWorld is an apiserver with an audit log and a proxy in front of it that authenticates.
type smuggleWorld struct {
	admin                    *kubernetes.Clientset // straight to the apiserver
	adminToken               string
	proxyAddress, apiAddress string
	callers                  []*smuggleCaller
	auditLog                 string
	uids                     map[string]string // of what must not go, by namespace
}

func newSmuggleWorld(t *testing.T) *smuggleWorld {
	t.Helper()
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(smuggleTokens), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &smuggleWorld{auditLog: filepath.Join(dir, "audit.log"), uids: map[string]string{}}
	api := cluster.APIServerT(t, cluster.Options{TokenFile: tokens, AuditLog: w.auditLog})
	w.adminToken = api.Token
	config := rest.CopyConfig(api.RESTConfig())
	config.UserAgent = smuggleAdminAgent
	var err error
	if w.admin, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	w.fill(t)
	w.callers = []*smuggleCaller{
		{name: "token", token: "bobs-token"},
		{name: "certificate", certificate: smuggleCertificate(t, api.Dir, "carol", "crew")},
		{name: "nobody"},
	}
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: smuggleKubeconfig(t, dir, api), TLS: true,
		Args: []string{"--authentication", "delegated", "--client-ca-file", filepath.Join(api.Dir, "ca.crt")},
	})
	w.proxyAddress, w.apiAddress = smuggleHost(t, proxy.URL), smuggleHost(t, api.URL)
	return w
}

func smuggleHost(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// smuggleKubeconfig is that of the proxy.
func smuggleKubeconfig(t *testing.T, dir string, api *cluster.APIServer) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: api.URL, CertificateAuthorityData: api.CA}
	c.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: "proxys-token"}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	c.CurrentContext = "c"
	path := filepath.Join(dir, "proxy.kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// fill makes what nobody may read or take away, and lets bob and carol list the configmaps of namespace default.
func (w *smuggleWorld) fill(t *testing.T) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	precious := metav1.ObjectMeta{Name: "precious", Annotations: map[string]string{"marker": smuggleMarker}}
	for namespace, value := range map[string]string{"default": smugglePublic, "kube-system": smuggleMarker} {
		meta := metav1.ObjectMeta{Name: "precious", Annotations: map[string]string{"marker": value}}
		made, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, create)
		if err != nil {
			t.Fatal(err)
		}
		w.uids[namespace] = string(made.UID)
		if _, err := w.admin.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: precious}, create); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: precious, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
		if _, err := w.admin.CoreV1().Pods(namespace).Create(ctx, pod, create); err != nil {
			t.Fatal(err)
		}
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta,
		Subjects: []rbacv1.Subject{
			{Kind: "User", Name: "bob", APIGroup: "rbac.authorization.k8s.io"},
			{Kind: "User", Name: "carol", APIGroup: "rbac.authorization.k8s.io"},
		},
		RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "reader", APIGroup: "rbac.authorization.k8s.io"},
	}
	if _, err := w.admin.RbacV1().Roles("default").Create(ctx, role, create); err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin.RbacV1().RoleBindings("default").Create(ctx, binding, create); err != nil {
		t.Fatal(err)
	}
}

// smuggleCertificate is one that the apiserver's authority has signed.
func smuggleCertificate(t *testing.T, dir, user string, groups ...string) *tls.Certificate {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	const bits = 2048
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, &key.PublicKey, authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// dial connects to a server whose certificate does not matter here.
func (w *smuggleWorld) dial(address string, caller *smuggleCaller, protocol string) (*tls.Conn, error) {
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}} //nolint:gosec // loopback
	if caller.certificate != nil {
		config.Certificates = []tls.Certificate{*caller.certificate}
	}
	return tls.DialWithDialer(&net.Dialer{Timeout: smuggleLimit}, "tcp", address, config)
}

// prove makes the caches hot and sees that each caller gets what is due.
func (w *smuggleWorld) prove(t *testing.T) {
	t.Helper()
	admin := &smuggleCaller{token: w.adminToken}
	for _, hot := range []string{
		"/api/v1/pods?resourceVersion=0", "/api/v1/configmaps?resourceVersion=0", "/api/v1/namespaces/kube-system/pods?resourceVersion=0",
		"/api/v1/namespaces/kube-system/pods/precious?resourceVersion=0",
	} {
		if code, body := w.get(t, admin, hot); code != http.StatusOK || !bytes.Contains(body, []byte(smuggleMarker)) {
			t.Fatalf("admin: %s: %d %.300s", hot, code, body)
		}
	}
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusUnauthorized} {
		caller := w.callers[i]
		if code, body := w.get(t, caller, smuggleCached); code != want || (code == http.StatusOK) != bytes.Contains(body, []byte(smugglePublic)) {
			t.Fatalf("%s: %d instead of %d: %.300s", caller.name, code, want, body)
		}
	}
}

// get asks the proxy.
func (w *smuggleWorld) get(t *testing.T, caller *smuggleCaller, target string) (int, []byte) {
	t.Helper()
	tr := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		return w.dial(w.proxyAddress, caller, "http/1.1")
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.proxyAddress+target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", smuggleAdminAgent)
	if caller.token != "" {
		req.Header.Set("Authorization", "Bearer "+caller.token)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// checkStanding sees that nothing has gone or come.
func (w *smuggleWorld) checkStanding(t *testing.T) {
	t.Helper()
	for namespace, uid := range w.uids {
		got, err := w.admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "precious", metav1.GetOptions{})
		if err != nil || string(got.UID) != uid || got.DeletionTimestamp != nil {
			t.Errorf("the configmap in %s has gone: %v", namespace, err)
		}
		if _, err := w.admin.CoreV1().Pods(namespace).Get(t.Context(), "precious", metav1.GetOptions{}); err != nil {
			t.Errorf("the pod in %s has gone: %v", namespace, err)
		}
		if _, err := w.admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "smuggled", metav1.GetOptions{}); err == nil {
			t.Errorf("somebody has put a configmap into %s", namespace)
		}
	}
}

// smuggleEvent is a line of the audit log.
type smuggleEvent struct {
	Verb, RequestURI, UserAgent string
	User, ImpersonatedUser      struct{ Username string }
	ResponseStatus              struct{ Code int }
}

// effective is whom the apiserver took a request to be from.
func (e *smuggleEvent) effective() string {
	if e.ImpersonatedUser.Username != "" {
		return e.ImpersonatedUser.Username
	}
	return e.User.Username
}

func (w *smuggleWorld) audit(t *testing.T) (events []smuggleEvent) {
	t.Helper()
	log, err := os.ReadFile(w.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(log) {
		var e smuggleEvent
		if err := json.Unmarshal(line, &e); err != nil {
			continue // it is being written
		}
		events = append(events, e)
	}
	return events
}
