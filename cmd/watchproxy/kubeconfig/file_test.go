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
)

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// serverOf is where a cluster of a kubeconfig file leads.
func serverOf(t *testing.T, path, cluster string) string {
	t.Helper()
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return c.Clusters[cluster].Server
}

func run(t *testing.T, path string, args ...string) string {
	t.Helper()
	stdout, _, err := execute(append([]string{"--kubeconfig", path}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout
}

const proxyServer = "http://127.0.0.1:8001"

// A kubeconfig is changed in its place, however often, and becomes again what it was to the byte.
func TestInPlaceAndBack(t *testing.T) {
	kept := writeConfiguration(t)
	was := content(t, kept)
	path := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(kept, path); err != nil {
		t.Fatal(err)
	}

	if out := run(t, path, "--in-place", "--server", proxyServer); !strings.Contains(out, "a copy is in "+kept+backupSuffix+"\n") {
		t.Errorf("the copy is not where it says: %s", out)
	}
	once := content(t, kept)
	if out := run(t, path, "--in-place", "--server", proxyServer); !strings.Contains(out, "already") {
		t.Errorf("the second time: %s", out)
	}
	if content(t, kept) != once {
		t.Error("the second time changes it")
	}
	run(t, path, "--in-place", "--server", "https://proxy.example")
	run(t, path, "--in-place", "--server", "https://proxy.example", "--context", "two")

	for file, mode := range map[string]fs.FileMode{kept: 0o640, kept + backupSuffix: 0o600} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", file, info.Mode(), mode)
		}
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is none any more: %v", err)
	}
	if content(t, kept+backupSuffix) != was {
		t.Error("the copy is not of the file as it was at first")
	}
	c, err := clientcmd.LoadFromFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.AuthInfos["certificate"].ClientKey; got != "pki/user.key" || len(c.Contexts) != 5 {
		t.Errorf("the rest of the file changed: %q, %d contexts", got, len(c.Contexts))
	}

	run(t, path, "--undo")
	if got := serverOf(t, kept, "one"); got != "https://one.example:6443" {
		t.Errorf("one leads to %s", got)
	}
	if got := serverOf(t, kept, "two"); got != "https://proxy.example" {
		t.Errorf("two leads to %s", got)
	}
	if _, _, err := execute("--kubeconfig", path, "--undo"); !errors.Is(err, errNotRedirected) || !strings.Contains(err.Error(), `"two"`) {
		t.Errorf("undone twice: %v", err)
	}
	run(t, path, "--undo", "--context", "two")
	if content(t, kept) != was {
		t.Errorf("it is not what it was:\n%s", content(t, kept))
	}
	left, err := os.ReadDir(filepath.Dir(kept))
	if err != nil || len(left) != 2 { // config and pki
		t.Errorf("files left: %v, %v", left, err)
	}
}

// What was changed elsewhere in the file since stays.
func TestUndoKeepsLaterEdits(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	run(t, path, "--in-place", "--server", proxyServer)
	writeFile(t, path, strings.ReplaceAll(content(t, path), "namespace: team", "namespace: other"))
	if out := run(t, path, "--undo"); !strings.Contains(out, path+backupSuffix+" stays") {
		t.Errorf("it says %s", out)
	}
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := endpoint{
		LocationOfOrigin: path, Server: "https://one.example:6443", CertificateAuthority: "pki/ca.crt", TLSServerName: "apiserver",
		ProxyURL: "socks5://bastion.example:1080",
	}
	if got := endpointOf(c.Clusters["one"]); !reflect.DeepEqual(got, want) || c.Contexts["dev"].Namespace != "other" || len(redirected(c)) != 0 {
		t.Errorf("got %+v, %+v", got, c.Contexts["dev"])
	}
	if content(t, path+backupSuffix) != was {
		t.Error("the copy changed")
	}
}

// A cluster that was made to lead elsewhere since is not touched unless that is asked for.
func TestUndoRefusesToLoseEdits(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	run(t, path, "--in-place", "--server", proxyServer)
	edited := strings.Replace(content(t, path), "    server: "+proxyServer+"\n  name: one", "    server: https://new.example\n  name: one", 1)
	if edited == content(t, path) {
		t.Fatalf("no server to edit in\n%s", edited)
	}
	writeFile(t, path, edited)
	_, _, err := execute("--kubeconfig", path, "--undo")
	if !errors.Is(err, errChangedSince) || !strings.Contains(err.Error(), "https://new.example") || !strings.Contains(err.Error(), "--force") {
		t.Fatalf("got %v", err)
	}
	if content(t, path) != edited {
		t.Fatal("it changed all the same")
	}
	run(t, path, "--undo", "--force")
	if content(t, path) != was {
		t.Errorf("it is not what it was:\n%s", content(t, path))
	}
}

// A redirection that follows an edit goes back to the edit.
func TestRedirectAfterEdit(t *testing.T) {
	path := writeConfiguration(t)
	run(t, path, "--in-place", "--server", proxyServer, "--context", "lax")
	edited := strings.Replace(content(t, path), "    server: "+proxyServer+"\n  name: lax", "    server: https://new.example\n  name: lax", 1)
	writeFile(t, path, edited)
	run(t, path, "--in-place", "--server", proxyServer, "--context", "lax")
	if got := serverOf(t, path, "lax"); got != proxyServer {
		t.Errorf("it leads to %s", got)
	}
	run(t, path, "--undo", "--context", "lax")
	if got := serverOf(t, path, "lax"); got != "https://new.example" {
		t.Errorf("back, it leads to %s", got)
	}
}

// What kubectl config holds locked is left alone.
func TestInPlaceRespectsLock(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	lock := writeFile(t, path+".lock", "")
	_, _, err := execute("--kubeconfig", path, "--in-place", "--server", proxyServer)
	if err == nil || !strings.Contains(err.Error(), lock) {
		t.Errorf("got %v", err)
	}
	if content(t, path) != was || content(t, lock) != "" {
		t.Error("it changed all the same")
	}
}

// A kubeconfig can be made of one that was changed in its place: it goes back to the same, by its own paths.
func TestCopyOfRedirected(t *testing.T) {
	path := writeConfiguration(t)
	run(t, path, "--in-place", "--server", "https://proxy.example")
	copied := writeFile(t, filepath.Join(t.TempDir(), "copy"), run(t, path, "--server", "https://other.example"))
	run(t, copied, "--undo")
	c, err := clientcmd.LoadFromFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	got := endpointOf(c.Clusters["one"])
	if want := filepath.Join(filepath.Dir(path), "pki/ca.crt"); got.Server != "https://one.example:6443" || got.CertificateAuthority != want {
		t.Errorf("got %+v", got)
	}
}

// What a copy is said to be of is there, also of a file that led to a proxy from its beginning.
func TestInPlaceOfWritten(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "written"), run(t, writeConfiguration(t), "--server", "https://proxy.example"))
	was := content(t, path)
	if out := run(t, path, "--in-place", "--server", "https://proxy.example"); !strings.Contains(out, "already") {
		t.Errorf("it says %s", out)
	}
	if _, err := os.Stat(path + backupSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a copy of what was not changed: %v", err)
	}
	if out := run(t, path, "--in-place", "--server", proxyServer); !strings.Contains(out, "a copy is in "+path+backupSuffix) {
		t.Errorf("it says %s", out)
	}
	if content(t, path+backupSuffix) != was {
		t.Error("the copy is not of the file as it was")
	}
}

// A copy that --undo left there is not written over.
func TestCopiesStay(t *testing.T) {
	path := writeConfiguration(t)
	was := content(t, path)
	run(t, path, "--in-place", "--server", proxyServer)
	writeFile(t, path, strings.ReplaceAll(content(t, path), "namespace: team", "namespace: other"))
	run(t, path, "--undo")
	edited := content(t, path)

	out := run(t, path, "--in-place", "--server", proxyServer)
	if !strings.Contains(out, "a copy is in "+path+backupSuffix+".1; older copies stay: "+path+backupSuffix+"\n") {
		t.Errorf("it says %s", out)
	}
	if content(t, path+backupSuffix) != was || content(t, path+backupSuffix+".1") != edited {
		t.Error("the copies are not of what they were")
	}
	if out := run(t, path, "--in-place", "--server", "https://proxy.example"); !strings.Contains(out, "a copy is in "+path+backupSuffix+".1;") {
		t.Errorf("changed further, it says %s", out)
	}
	run(t, path, "--undo")
	if content(t, path) != edited || content(t, path+backupSuffix) != was {
		t.Error("it is not what it was")
	}
	if _, err := os.Stat(path + backupSuffix + ".1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy that was of use is still there: %v", err)
	}

	writeFile(t, path, was) // as the copy has it
	run(t, path, "--in-place", "--server", proxyServer)
	if _, err := os.Stat(path + backupSuffix + ".1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a second copy of the same: %v", err)
	}
}

// A file that is written holds credentials: it is for its owner, and never there in part.
func TestWrittenTo(t *testing.T) {
	source := writeConfiguration(t)
	was := content(t, source)
	want := run(t, source, "--server", proxyServer)
	dir := t.TempDir()
	path := filepath.Join(dir, "proxy.kubeconfig")
	for range 2 { // new, then over a file that others can read
		if out := run(t, source, "--server", proxyServer, "--to", path); out != "" || content(t, path) != want {
			t.Errorf("it says %q and writes\n%s", out, content(t, path))
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // as a redirection makes it
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(source, link); err != nil {
		t.Fatal(err)
	}
	for to, says := range map[string]string{
		source: "--in-place", link: "--in-place", dir: "is no file", filepath.Join(dir, "none", "x"): "no such file",
	} {
		_, _, err := execute("--kubeconfig", source, "--server", proxyServer, "--to", to)
		if err == nil || !strings.Contains(err.Error(), "--to") || !strings.Contains(err.Error(), says) {
			t.Errorf("to %s: %v", to, err)
		}
	}
	if content(t, source) != was {
		t.Error("the kubeconfig changed")
	}
}
