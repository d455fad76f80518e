package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// The users, and the namespace that each may use.
const (
	attackerUser, attackerSpace = "attacker", "attacked"
	victimUser, victimSpace     = "victim", "victims"
	tunnelled                   = "tunnelled" // a pod with a kubelet
	victimPods                  = 200
)

func tokenOf(user string) string { return user + "-token" }

// attackedPods is how many pods the attackers can list.
func attackedPods() int {
	const short, long = 1500, 5000
	if atLength() {
		return long
	}
	return short
}

// world is what all rows share.
type world struct {
	api   *cluster.APIServer
	admin *kubernetes.Clientset
	old   string // a resourceVersion from before the proxies' caches
	front *target
	local *target
	few   *target
	stray tls.Certificate // of an authority that nobody trusts

	victim      *victim
	undisturbed report
}

func newWorld(t *testing.T) *world {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	var users strings.Builder
	for _, user := range []string{attackerUser, victimUser} {
		fmt.Fprintf(&users, "%s,%s,%s-uid\n", tokenOf(user), user, user)
	}
	if err := os.WriteFile(tokens, []byte(users.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{api: cluster.APIServerT(t, cluster.Options{TokenFile: tokens}), stray: strayCertificate(t)}
	var err error
	if w.admin, err = kubernetes.NewForConfig(w.api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	w.fill(t)
	w.startKubelet(t)
	w.front = w.startFront(t)
	w.local = w.startLocal(t)
	w.few = w.startFew(t)
	return w
}

// fill makes what the attackers and the victim read, and gives them the right to.
func (w *world) fill(t *testing.T) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	for user, namespace := range map[string]string{attackerUser: attackerSpace, victimUser: victimSpace} {
		meta := metav1.ObjectMeta{Name: namespace}
		if _, err := w.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, create); err != nil {
			t.Fatal(err)
		}
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods", "configmaps"}, Verbs: []string{"get", "list", "watch", "create"}},
			{
				APIGroups: []string{""}, Resources: []string{"pods/exec", "pods/attach", "pods/portforward", "pods/log"},
				Verbs: []string{"get", "create"},
			},
		}}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: role.ObjectMeta,
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
			RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: user, APIGroup: rbacv1.GroupName},
		}
		if _, err := w.admin.RbacV1().Roles(namespace).Create(ctx, role, create); err != nil {
			t.Fatal(err)
		}
		if _, err := w.admin.RbacV1().RoleBindings(namespace).Create(ctx, binding, create); err != nil {
			t.Fatal(err)
		}
	}
	made, err := w.admin.CoreV1().ConfigMaps(victimSpace).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: counterName}, Data: map[string]string{"n": "0"}}, create)
	if err != nil {
		t.Fatal(err)
	}
	w.old = made.ResourceVersion
	hidden := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, Data: map[string][]byte{"is": []byte("hidden")}}
	if _, err := w.admin.CoreV1().Secrets(metav1.NamespaceDefault).Create(ctx, hidden, create); err != nil {
		t.Fatal(err)
	}
	const parallel, configMaps, large = 16, 100, 30 << 10
	for namespace, n := range map[string]int{attackerSpace: attackedPods(), victimSpace: victimPods} {
		if err := workload.Parallel(ctx, n, parallel, func(ctx context.Context, i int) error {
			pod := workload.NewPod(i)
			pod.Namespace, pod.Name = namespace, podName(namespace, i)
			_, err := w.admin.CoreV1().Pods(namespace).Create(ctx, pod, create)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := workload.Parallel(ctx, configMaps, parallel, func(ctx context.Context, i int) error {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)}
		_, err := w.admin.CoreV1().ConfigMaps(attackerSpace).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"x": strings.Repeat("x", large)}}, create)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func podName(namespace string, i int) string { return fmt.Sprintf("%s-%05d", namespace, i) }

func podsURL(server, namespace string) string {
	return server + "/api/v1/namespaces/" + namespace + "/pods"
}

// startKubelet makes a node whose kubelet agrees to every upgrade and then keeps silent, and a pod
// on it. Its log of the pod does not end either.
func (w *world) startKubelet(t *testing.T) {
	t.Helper()
	k := httptest.NewUnstartedServer(http.HandlerFunc(silent))
	k.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that attackers cut
	k.StartTLS()
	t.Cleanup(k.Close)
	create := metav1.CreateOptions{}
	node, err := w.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: tunnelled}}, create)
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(k.Listener.Addr().(*net.TCPAddr).Port)
	if _, err := w.admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := w.admin.CoreV1().Pods(attackerSpace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: tunnelled},
		Spec:       corev1.PodSpec{NodeName: tunnelled, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, create)
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	if _, err := w.admin.CoreV1().Pods(attackerSpace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func silent(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		_, _ = io.WriteString(rw, "a line\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
		return
	}
	conn, stream, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	_, _ = io.Copy(io.Discard, stream)
}

// strayCertificate is a client certificate that signs itself, for a name that would be welcome.
func strayCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
