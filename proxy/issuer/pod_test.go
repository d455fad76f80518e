package issuer

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// pod has the directories of a pod.
type pod struct {
	*testing.T
	PodOptions
}

func newPod(t *testing.T) pod {
	t.Helper()
	dir := t.TempDir()
	p := pod{t, PodOptions{
		Account: filepath.Join(dir, "account"), Directory: filepath.Join(dir, "published"), Authority: filepath.Join(dir, "authority"),
		DNSNames: []string{"localhost"}, IPAddresses: []string{"127.0.0.1"},
	}}
	cluster, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	p.mount("ca.crt", string(encodePEM(cluster.certificate.Raw)))
	p.mount("namespace", "shop")
	p.mount("token", "first")
	return p
}

// mount writes a file of the service account.
func (p pod) mount(name, content string) {
	p.Helper()
	if err := replace(filepath.Join(p.Account, name), []byte(content), publicFile, publicDirectory); err != nil {
		p.Fatal(err)
	}
}

func (p pod) start() *Pod {
	p.Helper()
	made, err := NewPod(p.PodOptions, zap.NewNop())
	if err != nil {
		p.Fatal(err)
	}
	return made
}

func (p pod) published(name string) string {
	p.Helper()
	content, err := os.ReadFile(filepath.Join(p.Directory, name))
	if err != nil {
		p.Fatal(err)
	}
	return string(content)
}

// accepts fails the test unless a client with the bundle accepts the certificate.
func (p pod) accepts(made *Pod, bundle string) {
	p.Helper()
	if err := verify(p.T, &made.served, bundle, "127.0.0.1", "localhost"); err != nil {
		p.Error(err)
	}
}

// Clients find what a pod's service account has, and accept the proxy, also after its container has
// restarted. Only the proxy can read the private key.
func TestPodPublishes(t *testing.T) {
	p := newPod(t)
	made := p.start()
	bundle := p.published("ca.crt")
	p.accepts(made, bundle)
	if cluster, err := os.ReadFile(filepath.Join(p.Account, "ca.crt")); err != nil || !bytes.HasSuffix([]byte(bundle), cluster) {
		t.Error("the cluster's CA is missing")
	}
	if p.published("token") != "first" || p.published("namespace") != "shop" {
		t.Errorf("token %q, namespace %q", p.published("token"), p.published("namespace"))
	}
	for path, want := range map[string]fs.FileMode{
		filepath.Join(p.Authority, authorityFile): 0o600, p.Authority: fs.ModeDir | 0o700,
		filepath.Join(p.Directory, "token"): 0o644, filepath.Join(p.Directory, "ca.crt"): 0o644,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, want %v (%v)", path, info.Mode(), want, err)
		}
	}
	if strings.Contains(bundle, "PRIVATE") {
		t.Error("a private key is published")
	}
	p.accepts(p.start(), bundle)
	if p.published("ca.crt") != bundle {
		t.Error("the published CA has changed")
	}
}

// New tokens are published within seconds, and certificates are renewed, while the proxy runs.
func TestPodFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		made := p.start()
		inBackground(t, made)
		p.mount("token", "second")
		time.Sleep(2 * publishInterval)
		if token := p.published("token"); token != "second" {
			t.Errorf("the token is %q", token)
		}
		before := leaf(t, &made.served)
		made.mu.Lock()
		made.mu.serving.renew = time.Now()
		made.mu.Unlock()
		time.Sleep(2 * publishInterval)
		if leaf(t, &made.served).Equal(before) {
			t.Error("the certificate is not renewed")
		}
		p.accepts(made, p.published("ca.crt"))
	})
}

// The published token stays if the service account's cannot be read for a while.
func TestPodWithoutToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		inBackground(t, p.start())
		if err := os.Remove(filepath.Join(p.Account, "token")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * publishInterval)
		if token := p.published("token"); token != "first" {
			t.Errorf("the token is %q", token)
		}
		p.mount("token", "second")
		time.Sleep(2 * publishInterval)
		if token := p.published("token"); token != "second" {
			t.Errorf("the token is %q", token)
		}
	})
	p := newPod(t)
	if err := os.Remove(filepath.Join(p.Account, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := NewPod(p.PodOptions, zap.NewNop()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "service account of the pod") {
		t.Errorf("no token: %v", err)
	}
}

// A file that a killed proxy has not finished is removed, and an empty one counts as none.
func TestPodAfterKill(t *testing.T) {
	p := newPod(t)
	left := filepath.Join(p.Directory, unfinished+"token.1")
	for path, content := range map[string]string{left: "a token", filepath.Join(p.Authority, authorityFile): ""} {
		if err := replace(path, []byte(content), privateFile, privateDirectory); err != nil {
			t.Fatal(err)
		}
	}
	p.accepts(p.start(), p.published("ca.crt"))
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unfinished file is left: %v", err)
	}
}

// A file that is no CA is not overwritten.
func TestPodWithForeignFile(t *testing.T) {
	p := newPod(t)
	path := filepath.Join(p.Authority, authorityFile)
	if err := replace(path, []byte("half a file"), privateFile, privateDirectory); err != nil {
		t.Fatal(err)
	}
	if _, err := NewPod(p.PodOptions, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "delete the pod") {
		t.Errorf("%v", err)
	}
	if content, err := os.ReadFile(path); err != nil || !bytes.Equal(content, []byte("half a file")) {
		t.Errorf("%q, %v", content, err)
	}
}
