package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// newCertificate returns a self-signed certificate in PEM.
func newCertificate() []byte {
	pem, _, err := cert.GenerateSelfSignedCertKey("proxy.example", nil, nil)
	if err != nil {
		panic(err)
	}
	return pem
}

// clusterCertificate is the certificate of the clusters.
var clusterCertificate = sync.OnceValue(newCertificate)

// configuration has several clusters and every kind of user. %CA% is a certificate.
const configuration = `# kept by hand
apiVersion: v1
kind: Config
current-context: dev
clusters:
- name: one
  cluster:
    server: https://one.example:6443
    certificate-authority: pki/ca.crt
    tls-server-name: apiserver
    proxy-url: socks5://bastion.example:1080
    disable-compression: true
    extensions:
    - name: client.authentication.k8s.io/exec
      extension: {audience: one}
- name: two
  cluster: {server: "https://two.example:6443", certificate-authority-data: %CA%}
- name: lax
  cluster: {server: "https://lax.example:6443", insecure-skip-tls-verify: true}
contexts:
- {name: dev, context: {cluster: one, user: plugin, namespace: team}}
- {name: ops, context: {cluster: one, user: certificate}}
- {name: two, context: {cluster: two, user: token}}
- {name: lax, context: {cluster: lax, user: token}}
- {name: broken, context: {cluster: missing, user: token}}
users:
- name: plugin
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: ./bin/plugin, interactiveMode: Never, provideClusterInfo: true}
- {name: certificate, user: {client-certificate: pki/user.crt, client-key: pki/user.key}}
- {name: token, user: {token: secret}}
`

func writeFile(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeConfiguration(t *testing.T) string {
	t.Helper()
	pem := clusterCertificate()
	data := base64.StdEncoding.EncodeToString(pem)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pki"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "pki/ca.crt"), string(pem))
	return writeFile(t, filepath.Join(dir, "config"), strings.ReplaceAll(configuration, "%CA%", data))
}

// execute runs the command with the root command's settings.
func execute(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := newKubeconfig()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.Execute()
	return out.String(), errs.String(), err
}

// written reads the command's output.
func written(t *testing.T, args ...string) (*clientcmdapi.Config, string) {
	t.Helper()
	stdout, stderr, err := execute(args...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.Load([]byte(stdout))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, stdout)
	}
	return c, stderr
}

// endpointOf returns a cluster without what the command does not change.
func endpointOf(c *clientcmdapi.Cluster) clientcmdapi.Cluster {
	e := *c
	e.DisableCompression, e.Extensions = false, nil
	return e
}

func TestOverHTTP(t *testing.T) {
	path := writeConfiguration(t)
	dir := filepath.Dir(path)
	c, stderr := written(t, "--kubeconfig", path, "--server", "http://127.0.0.1:8001")

	if len(c.Clusters) != 1 || len(c.Contexts) != 2 || len(c.AuthInfos) != 2 || c.CurrentContext != "dev" {
		t.Fatalf("clusters %v, contexts %v, users %v, current %q", c.Clusters, c.Contexts, c.AuthInfos, c.CurrentContext)
	}
	one := c.Clusters["one"]
	if got, want := endpointOf(one), (clientcmdapi.Cluster{Server: "http://127.0.0.1:8001"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !one.DisableCompression || one.Extensions["client.authentication.k8s.io/exec"] == nil {
		t.Errorf("lost: %+v", one)
	}
	if at := c.Contexts["dev"]; at.Namespace != "team" || at.AuthInfo != "plugin" {
		t.Errorf("context: %+v", at)
	}
	if got, want := c.AuthInfos["plugin"].Exec.Command, filepath.Join(dir, "bin/plugin"); got != want {
		t.Errorf("plugin %q, want %q", got, want)
	}
	if got, want := c.AuthInfos["certificate"].ClientKey, filepath.Join(dir, "pki/user.key"); got != want {
		t.Errorf("key %q, want %q", got, want)
	}
	if !strings.Contains(stderr, "clients send no credentials over plain http") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("it says %s", stderr)
	}
}

func TestOverTLS(t *testing.T) {
	path := writeConfiguration(t)
	pem := newCertificate()
	ca := writeFile(t, filepath.Join(t.TempDir(), "ca.crt"), string(pem))
	const server = "https://proxy.example:6443"
	for name, test := range map[string]struct {
		args []string
		want clientcmdapi.Cluster
		says string
	}{
		"an authority of its own": {
			[]string{"--context", "two", "--certificate-authority", ca},
			clientcmdapi.Cluster{Server: server, CertificateAuthorityData: pem},
			"",
		},
		"the cluster's authority": {
			[]string{"--context", "two"},
			clientcmdapi.Cluster{Server: server, CertificateAuthorityData: clusterCertificate()},
			"verified by the cluster's",
		},
		"the cluster's in a file, its proxy-url, another name": {
			[]string{"--tls-server-name", "proxy"},
			clientcmdapi.Cluster{Server: server, TLSServerName: "proxy", CertificateAuthority: filepath.Join(filepath.Dir(path), "pki/ca.crt"), ProxyURL: "socks5://bastion.example:1080"},
			"through the cluster's proxy-url",
		},
		"not verified": {
			[]string{"--context", "lax"},
			clientcmdapi.Cluster{Server: server, InsecureSkipTLSVerify: true},
			"insecure-skip-tls-verify",
		},
		"verified after all": {
			[]string{"--context", "lax", "--certificate-authority", ca},
			clientcmdapi.Cluster{Server: server, CertificateAuthorityData: pem},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, stderr := written(t, append([]string{"--kubeconfig", path, "--server", server}, test.args...)...)
			for _, cluster := range c.Clusters {
				if got := endpointOf(cluster); !reflect.DeepEqual(got, test.want) {
					t.Errorf("got %+v, want %+v", got, test.want)
				}
			}
			if !strings.Contains(stderr, test.says) || test.says == "" && stderr != "" {
				t.Errorf("it says %q", stderr)
			}
			// client-go accepts the result.
			if _, err := clientcmd.NewDefaultClientConfig(*c, &clientcmd.ConfigOverrides{}).ClientConfig(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The files of a $KUBECONFIG list are merged. The first file takes precedence.
func TestList(t *testing.T) {
	first, second := writeConfiguration(t), writeConfiguration(t)
	writeFile(t, first, `{apiVersion: v1, kind: Config, current-context: mine, contexts: [{name: mine, context: {cluster: two, user: token}}]}`)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "missing")+string(filepath.ListSeparator)+first+string(filepath.ListSeparator)+second)
	c, _ := written(t, "--server", "http://localhost:8001")
	if c.CurrentContext != "mine" || c.Contexts["mine"] == nil || c.Contexts["two"] == nil || c.Contexts["dev"] != nil || c.AuthInfos["token"].Token != "secret" {
		t.Errorf("%+v", c)
	}
}

func loadFile(t *testing.T, path string) *clientcmdapi.Config {
	t.Helper()
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// --to replaces a file at once, and no file from which the kubeconfig was read.
func TestTo(t *testing.T) {
	path := writeConfiguration(t)
	to := writeFile(t, filepath.Join(t.TempDir(), "to"), "old")
	if _, _, err := execute("--kubeconfig", path, "--server", "http://localhost:8001", "--to", to); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 || loadFile(t, to).Clusters["one"].Server != "http://localhost:8001" {
		t.Errorf("%v, %v", info, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	before := loadFile(t, path)
	for _, to := range []string{path, link, os.DevNull, t.TempDir(), "/no/such/file"} {
		if _, _, err := execute("--kubeconfig", path, "--server", "http://localhost:8001", "--to", to); err == nil || !strings.Contains(err.Error(), "--to") {
			t.Errorf("--to %s: %v", to, err)
		}
	}
	if after := loadFile(t, path); !reflect.DeepEqual(before, after) {
		t.Errorf("the kubeconfig has changed: %+v", after)
	}
}

func TestRefuses(t *testing.T) {
	path := writeConfiguration(t)
	dir := t.TempDir()
	noPEM := writeFile(t, filepath.Join(dir, "no.pem"), "nonsense")
	empty := writeFile(t, filepath.Join(dir, "empty"), "")
	nowhere := writeFile(t, filepath.Join(dir, "nowhere"), "{contexts: [{name: a, context: {cluster: b}}]}")
	const local = "http://127.0.0.1:8001"
	for name, test := range map[string]struct {
		args []string
		says []string
	}{
		"no scheme":          {[]string{"--server", "127.0.0.1:8001"}, []string{"--server", `"127.0.0.1:8001"`}},
		"no host":            {[]string{"--server", "http://"}, []string{"--server", "host"}},
		"another scheme":     {[]string{"--server", "ftp://a"}, []string{"--server", "http"}},
		"credentials":        {[]string{"--server", "https://u:p@a"}, []string{"--server", "credentials"}},
		"query":              {[]string{"--server", "https://a?b"}, []string{"--server", "query"}},
		"authority of http":  {[]string{"--server", local, "--certificate-authority", noPEM}, []string{"--certificate-authority", "https"}},
		"no PEM":             {[]string{"--server", "https://a", "--certificate-authority", noPEM}, []string{noPEM, "PEM"}},
		"no authority":       {[]string{"--server", "https://a", "--certificate-authority", "/no/such"}, []string{"--certificate-authority", "/no/such"}},
		"unknown context":    {[]string{"--server", local, "--context", "prod"}, []string{`"prod"`, `"dev"`, `"ops"`, `"two"`}},
		"unknown cluster":    {[]string{"--server", local, "--context", "broken"}, []string{`"broken"`, `"missing"`, `"one"`}},
		"no such file":       {[]string{"--server", local, "--kubeconfig", "/no/such"}, []string{"/no/such"}},
		"empty file":         {[]string{"--server", local, "--kubeconfig", empty}, []string{empty, "no contexts"}},
		"no YAML":            {[]string{"--server", local, "--kubeconfig", noPEM}, []string{noPEM}},
		"no current context": {[]string{"--server", local, "--kubeconfig", nowhere}, []string{"--context", `"a"`}},
	} {
		t.Run(name, func(t *testing.T) {
			args := test.args
			if !strings.Contains(strings.Join(args, " "), "--kubeconfig") {
				args = append(args, "--kubeconfig", path)
			}
			stdout, _, err := execute(args...)
			if err == nil || stdout != "" {
				t.Fatalf("it writes %q", stdout)
			}
			for _, what := range test.says {
				if !strings.Contains(err.Error(), what) {
					t.Errorf("no %q in: %v", what, err)
				}
			}
		})
	}
}
