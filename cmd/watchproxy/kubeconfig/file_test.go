package kubeconfig

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const proxyServer, otherServer, newServer = "http://127.0.0.1:8001", "https://proxy.example", "https://new.example"

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// holds checks the bytes of a file.
func holds(t *testing.T, path, want string) {
	t.Helper()
	if got := content(t, path); got != want {
		t.Errorf("%s holds\n%s\nwant\n%s", path, got, want)
	}
}

// missing checks that a file does not exist.
func missing(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

// replace edits a file and returns its new content.
func replace(t *testing.T, path, text, with string) string {
	t.Helper()
	before := content(t, path)
	after := strings.Replace(before, text, with, 1)
	if after == before {
		t.Fatalf("no %q in\n%s", text, before)
	}
	return content(t, writeFile(t, path, after))
}

func load(t *testing.T, path string) *clientcmdapi.Config {
	t.Helper()
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// leads checks the server of a cluster.
func leads(t *testing.T, path, cluster, want string) {
	t.Helper()
	if got := load(t, path).Clusters[cluster].Server; got != want {
		t.Errorf("%s leads to %s, want %s", cluster, got, want)
	}
}

// run runs the command on a kubeconfig and checks its output.
func run(t *testing.T, path, says string, args ...string) (stdout string) {
	t.Helper()
	stdout, _, err := execute(append([]string{"--kubeconfig", path}, args...)...)
	if err != nil || !strings.Contains(stdout, says) {
		t.Fatalf("%v, no %q in %s", err, says, stdout)
	}
	return stdout
}

// A kubeconfig can be redirected several times. --undo restores the original bytes.
func TestInPlaceAndBack(t *testing.T) {
	kept := writeConfiguration(t)
	was := content(t, kept)
	path := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(kept, path); err != nil {
		t.Fatal(err)
	}

	run(t, path, "a copy is in "+kept+backupSuffix+"\n", "--in-place", "--server", proxyServer)
	once := content(t, kept)
	run(t, path, "already", "--in-place", "--server", proxyServer)
	holds(t, kept, once)
	run(t, path, "", "--in-place", "--server", otherServer)
	run(t, path, "", "--in-place", "--server", otherServer, "--context", "two")

	for file, mode := range map[string]fs.FileMode{kept: 0o640, kept + backupSuffix: 0o600, path: fs.ModeSymlink | fs.ModePerm} {
		if info, err := os.Lstat(file); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v: %v", file, info.Mode(), mode, err)
		}
	}
	holds(t, kept+backupSuffix, was)
	c := load(t, kept)
	if got := c.AuthInfos["certificate"].ClientKey; got != "pki/user.key" || len(c.Contexts) != 5 {
		t.Errorf("the rest of the file changed: %q, %d contexts", got, len(c.Contexts))
	}

	run(t, path, "", "--undo")
	leads(t, kept, "one", "https://one.example:6443")
	leads(t, kept, "two", otherServer)
	if _, _, err := execute("--kubeconfig", path, "--undo"); !errors.Is(err, errNotRedirected) || !strings.Contains(err.Error(), `"two"`) {
		t.Errorf("undone twice: %v", err)
	}
	run(t, path, "", "--undo", "--context", "two")
	holds(t, kept, was)
	left, err := os.ReadDir(filepath.Dir(kept))
	if err != nil || len(left) != 2 { // config and pki
		t.Errorf("files left: %v, %v", left, err)
	}
}

// --undo keeps edits elsewhere in the file.
func TestUndoKeepsLaterEdits(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	run(t, path, "", "--in-place", "--server", proxyServer)
	replace(t, path, "namespace: team", "namespace: other")
	run(t, path, path+backupSuffix+" stays", "--undo")
	c := load(t, path)
	want := endpoint{
		LocationOfOrigin: path, Server: "https://one.example:6443", CertificateAuthority: "pki/ca.crt", TLSServerName: "apiserver",
		ProxyURL: "socks5://bastion.example:1080",
	}
	if got := endpointOf(c.Clusters["one"]); !reflect.DeepEqual(got, want) || c.Contexts["dev"].Namespace != "other" || len(redirected(c)) != 0 {
		t.Errorf("got %+v, %+v", got, c.Contexts["dev"])
	}
	holds(t, path+backupSuffix, was)
}

// --undo needs --force for a cluster that was edited.
func TestUndoRefusesToLoseEdits(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	run(t, path, "", "--in-place", "--server", proxyServer)
	edited := replace(t, path, proxyServer+"\n  name: one", newServer+"\n  name: one")
	_, _, err := execute("--kubeconfig", path, "--undo")
	if !errors.Is(err, errChangedSince) || !strings.Contains(err.Error(), newServer) || !strings.Contains(err.Error(), "--force") {
		t.Fatalf("got %v", err)
	}
	holds(t, path, edited)
	run(t, path, "", "--undo", "--force")
	holds(t, path, was)
}

// --undo keeps an edit that preceded the redirection.
func TestRedirectAfterEdit(t *testing.T) {
	path := writeConfiguration(t)
	run(t, path, "", "--in-place", "--server", proxyServer, "--context", "lax")
	replace(t, path, proxyServer+"\n  name: lax", newServer+"\n  name: lax")
	run(t, path, "", "--in-place", "--server", proxyServer, "--context", "lax")
	leads(t, path, "lax", proxyServer)
	run(t, path, "", "--undo", "--context", "lax")
	leads(t, path, "lax", newServer)
}

// The command respects the lock of kubectl config.
func TestInPlaceRespectsLock(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	lock := writeFile(t, path+".lock", "")
	_, _, err := execute("--kubeconfig", path, "--in-place", "--server", proxyServer)
	if err == nil || !strings.Contains(err.Error(), lock) {
		t.Errorf("got %v", err)
	}
	holds(t, path, was)
	holds(t, lock, "")
}

// --undo works in a kubeconfig written from a redirected kubeconfig. It restores the same server,
// with absolute paths.
func TestCopyOfRedirected(t *testing.T) {
	path := writeConfiguration(t)
	run(t, path, "", "--in-place", "--server", otherServer)
	copied := writeFile(t, filepath.Join(t.TempDir(), "copy"), run(t, path, "", "--server", "https://other.example"))
	run(t, copied, "", "--undo")
	got := load(t, copied).Clusters["one"]
	if want := filepath.Join(filepath.Dir(path), "pki/ca.crt"); got.Server != "https://one.example:6443" || got.CertificateAuthority != want {
		t.Errorf("got %+v", got)
	}
}

// A copy is made only before a change. This also holds for a file that led to a proxy before its
// first redirection.
func TestInPlaceOfWritten(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "written"), run(t, writeConfiguration(t), "", "--server", otherServer))
	was := content(t, path)
	run(t, path, "already", "--in-place", "--server", otherServer)
	missing(t, path+backupSuffix)
	run(t, path, "a copy is in "+path+backupSuffix, "--in-place", "--server", proxyServer)
	holds(t, path+backupSuffix, was)
}

// A copy that --undo kept is never overwritten.
func TestCopiesStay(t *testing.T) {
	path := writeConfiguration(t)
	first, second := path+backupSuffix, path+backupSuffix+".1"
	was := content(t, path)
	run(t, path, "", "--in-place", "--server", proxyServer)
	replace(t, path, "namespace: team", "namespace: other")
	run(t, path, "", "--undo")
	edited := content(t, path)

	run(t, path, "a copy is in "+second+"; older copies stay: "+first+"\n", "--in-place", "--server", proxyServer)
	holds(t, first, was)
	holds(t, second, edited)
	run(t, path, "a copy is in "+second+";", "--in-place", "--server", otherServer)
	run(t, path, "", "--undo")
	holds(t, path, edited)
	holds(t, first, was)
	missing(t, second)

	writeFile(t, path, was)
	run(t, path, "", "--in-place", "--server", proxyServer)
	missing(t, second) // the first copy has the same content
}

// A written file contains credentials, so only its owner can read it. It is written completely or
// not at all.
func TestWrittenTo(t *testing.T) {
	source, dir := writeConfiguration(t), t.TempDir()
	was, want := content(t, source), run(t, source, "", "--server", proxyServer)
	path, link := filepath.Join(dir, "proxy.kubeconfig"), filepath.Join(dir, "link")
	for range 2 { // new, then over a file that others can read
		if out := run(t, source, "", "--server", proxyServer, "--to", path); out != "" {
			t.Errorf("it says %s", out)
		}
		holds(t, path, want)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // as a shell's redirection makes it
			t.Fatal(err)
		}
	}
	if err := os.Symlink(source, link); err != nil {
		t.Fatal(err)
	}
	empty := writeFile(t, filepath.Join(dir, "empty"), "")
	t.Setenv("KUBECONFIG", strings.Join([]string{empty, source}, string(filepath.ListSeparator)))
	for to, says := range map[string]string{
		source: "--in-place", link: "--in-place", empty: "--in-place", dir: "is no file", filepath.Join(dir, "none", "x"): "no such file",
	} {
		_, _, err := execute("--server", proxyServer, "--to", to)
		if err == nil || !strings.Contains(err.Error(), "--to") || !strings.Contains(err.Error(), says) {
			t.Errorf("to %s: %v", to, err)
		}
	}
	holds(t, source, was)
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}
