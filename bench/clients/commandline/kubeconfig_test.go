package commandline

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// usersKubeconfig writes a kubeconfig for the apiserver with one user of each kind. It names files
// by relative paths.
func usersKubeconfig(t *testing.T, w *clients.World) string {
	t.Helper()
	dir := t.TempDir()
	certificate, key := cluster.PEM(w.API.AuthorityT(t).SignT(t, time.Hour, "carol"))
	const plugin = `#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "` + clients.BobsToken + `"}}'
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
`, w.API.URL, w.API.Token)
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{{"ca.crt", string(w.API.CA), 0o600}, {"user.crt", string(certificate), 0o600}, {"user.key", string(key), 0o600}, {"plugin", plugin, 0o700}, {"config", content, 0o600}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.content), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "config")
}

// kubectlBy returns a front that uses only a kubeconfig.
func kubectlBy(t *testing.T, name, kubeconfig string) clients.Front {
	t.Helper()
	return clients.Front{Name: name, Args: []string{"--kubeconfig", kubeconfig}, Home: t.TempDir()}
}

func whoAmI(t *testing.T, f clients.Front, context string) string {
	t.Helper()
	return f.Must(t, clients.Kubectl("auth", "whoami", "--context", context, "-o", "jsonpath={.status.userInfo.username}"))
}

// requests returns the number of requests that a proxy has answered so far.
func requests(t *testing.T, p *cluster.Proxy) float64 {
	t.Helper()
	return p.MetricsT(t).Sum("watchproxy_requests_total")
}

// Every kind of user keeps its identity through a proxy that has a certificate of its own.
func TestKubeconfigOfEveryUser(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	proxy := w.FreshProxy(t, "", "--authentication=delegated")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, proxy.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	original := usersKubeconfig(t, w)
	got := runWatchproxy(t, "kubeconfig", "--kubeconfig", original, "--server", proxy.URL, "--certificate-authority", ca)
	if got.Code != 0 || got.Stderr != "" {
		t.Fatalf("%+v", got)
	}
	direct, through := kubectlBy(t, "apiserver", original), kubectlBy(t, "proxy", file(t, got.Stdout))
	for _, user := range []string{"admin", "carol", "bob"} {
		before := requests(t, proxy)
		if direct, through := whoAmI(t, direct, user), whoAmI(t, through, user); direct != user || through != user {
			t.Errorf("%s is %s to the apiserver, %s to the proxy", user, direct, through)
		}
		if requests(t, proxy) == before {
			t.Errorf("%s did not go through the proxy", user)
		}
	}
	if got := through.Must(t, clients.Kubectl("get", "namespaces", "default", "-o", "name")); got != "namespace/default\n" {
		t.Errorf("got %s", got)
	}
	for _, f := range []clients.Front{direct, through} {
		if got := f.Run(t, clients.Kubectl("get", "namespaces", "--context", "carol")); got.Code == 0 || !strings.Contains(got.Stderr, `User "carol" cannot list`) {
			t.Errorf("%s: %+v", f.Name, got)
		}
	}
}
