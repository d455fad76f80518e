package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// clientCertificate signs a certificate of a user by the cluster's authority, and writes it and its key.
func clientCertificate(t *testing.T, api *cluster.APIServer, user, dir string) {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(filepath.Join(api.Dir, "ca.crt"), filepath.Join(api.Dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: user},
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, &key.PublicKey, authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"user.crt": {Type: "CERTIFICATE", Bytes: certificate},
		"user.key": {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// usersKubeconfig is one of the apiserver with a user of each kind, whose files have relative paths.
func usersKubeconfig(t *testing.T, w *world) string {
	t.Helper()
	dir := t.TempDir()
	clientCertificate(t, w.api, "carol", dir)
	const plugin = `#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "` + bobsToken + `"}}'
`
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: real, cluster: {server: %q, certificate-authority: ca.crt}}]
users:
- {name: admin, user: {token: %q}}
- {name: carol, user: {client-certificate: user.crt, client-key: user.key}}
- {name: bob, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}}
contexts:
- {name: admin, context: {cluster: real, user: admin}}
- {name: carol, context: {cluster: real, user: carol}}
- {name: bob, context: {cluster: real, user: bob}}
current-context: admin
`, w.api.URL, w.api.Token)
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{{"ca.crt", string(w.api.CA), 0o600}, {"plugin", plugin, 0o700}, {"config", content, 0o600}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.content), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "config")
}

// kubectlBy is kubectl with a kubeconfig.
func kubectlBy(t *testing.T, name, kubeconfig string) front {
	t.Helper()
	return front{name, cluster.KubectlT(t), []string{"--kubeconfig", kubeconfig}, t.TempDir()}
}

func (f front) whoAmI(t *testing.T, context string) string {
	t.Helper()
	return f.must(t, kubectl("auth", "whoami", "--context", context, "-o", "jsonpath={.status.userInfo.username}"))
}

// requests is how many requests a proxy has answered so far.
func requests(t *testing.T, p *cluster.Proxy) float64 {
	t.Helper()
	return proxyMetrics(t, p).sum("watchproxy_requests_total")
}

// Every user stays who it is, through a proxy with a certificate of its own.
func TestKubeconfigOfEveryUser(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	proxy := w.secureProxy(t, "--authentication=delegated")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, proxy.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	original := usersKubeconfig(t, w)
	got := runWatchproxy(t, "kubeconfig", "--kubeconfig", original, "--server", proxy.URL, "--certificate-authority", ca)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	direct, through := kubectlBy(t, "apiserver", original), kubectlBy(t, "proxy", file(t, got.stdout))
	for _, user := range []string{"admin", "carol", "bob"} {
		before := requests(t, proxy)
		if direct, through := direct.whoAmI(t, user), through.whoAmI(t, user); direct != user || through != user {
			t.Errorf("%s is %s to the apiserver, %s to the proxy", user, direct, through)
		}
		if requests(t, proxy) == before {
			t.Errorf("%s did not go through the proxy", user)
		}
	}
	if got := through.must(t, kubectl("get", "namespaces", "default", "-o", "name")); got != "namespace/default\n" {
		t.Errorf("got %s", got)
	}
	for _, f := range []front{direct, through} {
		if got := f.run(t, kubectl("get", "namespaces", "--context", "carol")); got.code == 0 || !strings.Contains(got.stderr, `User "carol" cannot list`) {
			t.Errorf("%s: %+v", f.name, got)
		}
	}
}

// On loopback requests act as the proxy. The kubeconfig leads there and back, and a proxy that is started with it knows
// what is meant.
func TestKubeconfigInPlace(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	path := usersKubeconfig(t, w)
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	proxy := w.freshProxy(t)
	kubectlHere := kubectlBy(t, "in place", path)

	got := runWatchproxy(t, "kubeconfig", "--kubeconfig", path, "--server", proxy.URL, "--in-place")
	if got.code != 0 || !strings.Contains(got.stderr, `user "carol": clients do not send its client certificate over plain http`) {
		t.Fatalf("%+v", got)
	}
	before := requests(t, proxy)
	if who := kubectlHere.whoAmI(t, "carol"); who != "admin" {
		t.Errorf("through a proxy on loopback carol is %s", who)
	}
	if requests(t, proxy) == before {
		t.Error("kubectl did not go through the proxy")
	}

	listen := strings.TrimPrefix(proxy.URL, "http://")
	if err := proxy.Stop(); err != nil {
		t.Fatal(err)
	}
	again, err := cluster.StartProxy(t.Context(), cluster.ProxyOptions{Kubeconfig: path, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	var status struct{ Upstream string }
	if err := json.Unmarshal(httpGet(t, again.AdminURL+"/status"), &status); err != nil || status.Upstream != w.api.URL {
		t.Errorf("upstream is %q, %v", status.Upstream, err)
	}
	if code, _ := tryGet(t, again.URL+"/api/v1/namespaces/default"); code != http.StatusOK {
		t.Errorf("it answers %d", code)
	}

	if got := runWatchproxy(t, "kubeconfig", "--kubeconfig", path, "--undo"); got.code != 0 || got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	if is, err := os.ReadFile(path); err != nil || string(is) != string(was) {
		t.Errorf("it is not what it was: %v\n%s", err, is)
	}
	if who := kubectlHere.whoAmI(t, "carol"); who != "carol" {
		t.Errorf("back at the apiserver, carol is %s", who)
	}
}
