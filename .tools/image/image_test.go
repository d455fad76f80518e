package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/x509"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var archive = flag.String("image", "", "`FILE` that make image has written")

// limit bounds every wait, on a machine that is busy with other things.
const limit = 2 * time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unpack writes a tar archive beneath a directory.
func unpack(t *testing.T, from io.Reader, dir string) {
	t.Helper()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, h.FileInfo().Mode().Perm())
			}
		}
		must(t, err)
	}
}

// images are those in the archive, by architecture.
func images(t *testing.T) map[string]v1.Image {
	t.Helper()
	if *archive == "" {
		t.Skip("needs -image: make image-test builds it for two platforms")
	}
	f, err := os.Open(*archive)
	must(t, err)
	defer f.Close()
	dir := t.TempDir()
	unpack(t, f, dir)
	path, err := layout.FromPath(dir)
	must(t, err)
	top, err := path.ImageIndex()
	must(t, err)
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v in %+v", err, manifest)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	must(t, err)
	if err := validate.Index(index); err != nil {
		t.Errorf("no valid image: %v", err)
	}
	manifest, err = index.IndexManifest()
	must(t, err)
	all := map[string]v1.Image{}
	for _, m := range manifest.Manifests {
		image, err := index.Image(m.Digest)
		must(t, err)
		if m.Platform == nil || m.Platform.OS != "linux" {
			t.Errorf("platform %+v", m.Platform)
			continue
		}
		all[m.Platform.Architecture] = image
	}
	return all
}

// root unpacks an image's root.
func root(t *testing.T, image v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	content := mutate.Extract(image)
	defer content.Close()
	unpack(t, content, dir)
	return dir
}

func TestImage(t *testing.T) {
	all := images(t)
	if len(all) != 2 {
		t.Errorf("images for %d architectures", len(all))
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			image, ok := all[arch]
			if !ok {
				t.Fatal("there is none")
			}
			c, err := image.ConfigFile()
			must(t, err)
			if c.OS != "linux" || c.Architecture != arch || c.Config.User != "65532:65532" || strings.Join(c.Config.Entrypoint, " ") != "/watchproxy" {
				t.Errorf("%s/%s, user %q, entrypoint %q", c.OS, c.Architecture, c.Config.User, c.Config.Entrypoint)
			}
			for _, label := range []string{"title", "description", "licenses", "source", "version", "revision", "created"} {
				if c.Config.Labels["org.opencontainers.image."+label] == "" {
					t.Errorf("no label %s in %v", label, c.Config.Labels)
				}
			}
			dir := root(t, image)
			static(t, filepath.Join(dir, "watchproxy"), machine)
			authorities, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
			if err != nil || !x509.NewCertPool().AppendCertsFromPEM(authorities) {
				t.Errorf("no certificate authorities: %v", err)
			}
			for _, name := range []string{table, "std/LICENSE", "github.com/watchproxy/watchproxy/LICENSE", "github.com/prometheus/common/NOTICE"} {
				if info, err := os.Stat(filepath.Join(dir, "licenses", name)); err != nil || info.Size() == 0 {
					t.Errorf("no licence %s: %v", name, err)
				}
			}
		})
	}
}

// static fails unless a binary needs nothing beside itself.
func static(t *testing.T, path string, machine elf.Machine) {
	t.Helper()
	f, err := elf.Open(path)
	must(t, err)
	defer f.Close()
	if f.Machine != machine {
		t.Errorf("it is for %v", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it is linked dynamically: %v", p.Type)
		}
	}
}

// in makes a command of the image's: in its root, as its user, with no directory that it may write to.
func in(ctx context.Context, t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = os.Chmod(path, 0o555)
		}
		return err
	})
	must(t, err)
	t.Cleanup(func() { os.Chmod(dir, 0o755) })
	for at := dir; at != "/"; at = filepath.Dir(at) { // or the user cannot get there
		if info, err := os.Stat(at); err == nil && info.Mode()&0o001 == 0 {
			must(t, os.Chmod(at, info.Mode()|0o055))
		}
	}
	cmd := exec.CommandContext(ctx, entrypoint, args...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: user, Gid: user, NoSetGroups: os.Getuid() != 0}}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

var addresses = regexp.MustCompile(`^watchproxy ready: (http://\S+) \(admin (http://\S+)\)$`)

// The binary of this machine's architecture runs in the image: it tells its version, and serves.
func TestRun(t *testing.T) {
	image, ok := images(t)[runtime.GOARCH]
	if !ok {
		t.Skipf("there is no image for %s, so none that this machine can run", runtime.GOARCH)
	}
	dir := root(t, image)
	config, err := image.ConfigFile()
	must(t, err)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"gitVersion":"v1.36.3"}`) }))
	defer upstream.Close()
	kubeconfig := fmt.Sprintf(`{current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}`, upstream.URL)
	must(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(kubeconfig), 0o444))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	version, err := in(ctx, t, dir, "version").CombinedOutput()
	labels := config.Config.Labels
	want := fmt.Sprintf("watchproxy version %s (commit %s, ", labels["org.opencontainers.image.version"], labels["org.opencontainers.image.revision"])
	if err != nil || !strings.HasPrefix(string(version), want) || !strings.Contains(string(version), "linux/"+runtime.GOARCH) {
		t.Errorf("%v: %s, want %s…", err, version, want)
	}

	cmd := in(ctx, t, dir, append(config.Config.Cmd, "--kubeconfig", "/kubeconfig", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if at := addresses.FindStringSubmatch(strings.TrimSpace(line)); at == nil {
		t.Errorf("it says %q", line)
	} else {
		for url, want := range map[string]string{at[2] + "/livez": "ok", at[1] + "/version": `{"gitVersion":"v1.36.3"}`} {
			if got := get(ctx, t, url); got != want {
				t.Errorf("%s: %q", url, got)
			}
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, stderr.String())
	}
}

func get(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}
