package commandline

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// elsewhere gives the reason for each command in the documents that this test does not run.
var elsewhere = map[string]string{
	"make demo":  "TestDemo of bench/demo runs what it builds",
	"make test":  "it runs this",
	"make build": "the same binary, by another name and with the race detector, runs here",
	"bin/watchproxy serve --listen 0.0.0.0:6443 --tls-cert-file tls.crt --tls-private-key-file tls.key":                                            "bench/access runs it on loopback",
	"helm install watchproxy charts/watchproxy --namespace watchproxy --create-namespace":                                                          "bench/chart installs what it renders",
	"helm install watchproxy charts/watchproxy --namespace watchproxy --create-namespace --set kind=DaemonSet,service.internalTrafficPolicy=Local": "bench/chart renders it among others",
}

// Every command in the documents works, in the given order, for a user who has only a kubeconfig.
// The test uses other ports than the documents, so that several runs do not collide.
func TestReadme(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	dir := t.TempDir()
	shell := newShell(t, w, dir)
	for _, document := range []string{"README.md", "cmd/watchproxy/README.md"} {
		commands := commandsOf(t, document)
		if len(commands) < 3 {
			t.Errorf("%s has only %q", document, commands)
		}
		for _, command := range commands {
			if why, ok := elsewhere[command]; ok {
				t.Logf("%s: not here: %s", command, why)
				continue
			}
			out, err := shell.run(t, command)
			t.Logf("%s\n%.300s", command, out)
			if err != nil {
				t.Errorf("%s: %s: %v\n%s", document, command, err, out)
			}
			if strings.HasPrefix(command, "kubectl") && !strings.Contains(out, "readme-pod") && !strings.Contains(out, "readme-node") && !strings.Contains(out, "created") {
				t.Errorf("%s shows nothing:\n%s", command, out)
			}
		}
		for i, object := range objectsOf(t, document) {
			path := filepath.Join(dir, "object.yaml")
			if err := os.WriteFile(path, []byte(object), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := shell.run(t, "kubectl create --dry-run=server --validate=strict -f "+path); err != nil {
				t.Errorf("%s: object %d: %v\n%s", document, i, err, out)
			}
		}
	}
	ca, err := w.Admin.CoreV1().ConfigMaps("team").Get(t.Context(), "watchproxy-ca", metav1.GetOptions{})
	if err != nil || len(ca.Data) != 1 || ca.Data["ca.crt"] != string(w.API.CA) {
		t.Errorf("the authority for clients in the cluster: %v, %v", ca, err)
	}
}

// fenced matches a Kubernetes object in a document.
var fenced = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```$")

func objectsOf(t *testing.T, document string) []string { return found(t, document, fenced) }

func found(t *testing.T, document string, what *regexp.Regexp) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), document))
	must(t, err)
	for _, match := range what.FindAllStringSubmatch(string(text), -1) {
		all = append(all, match[1])
	}
	return all
}

// indented matches a command in a document. Text after # is a remark.
var indented = regexp.MustCompile(`(?m)^    ((?:make|bin/watchproxy|kubectl|helm) [^#\n]*[^#\n ])`)

func commandsOf(t *testing.T, document string) []string { return found(t, document, indented) }

// shell is a user's terminal, in a directory that contains the binary. The home directory contains
// a kubeconfig.
type shell struct {
	dir          string
	admin        string            // the proxy's admin address, once it serves
	replacements *strings.Replacer // of ports
}

func newShell(t *testing.T, w *clients.World, dir string) *shell {
	t.Helper()
	binary, err := cluster.BuildProxy(t.Context(), true)
	must(t, err)
	content, err := os.ReadFile(w.API.Kubeconfig)
	must(t, err)
	for _, sub := range []string{"bin", "home/.kube"} {
		must(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	must(t, os.Symlink(binary, filepath.Join(dir, "bin/watchproxy")))
	must(t, os.Symlink(cluster.KubectlT(t), filepath.Join(dir, "bin/kubectl")))
	for path, what := range map[string][]byte{"home/.kube/config": content, "ca.crt": w.API.CA} {
		must(t, os.WriteFile(filepath.Join(dir, path), what, 0o600))
	}
	w.CreatePod(t, w.Namespace(t, "readme"), cluster.NewPod("readme-pod"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "readme-node"}}
	_, err = w.Admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	w.API.NamespaceT(t, "team")
	tls := &corev1.Secret{ // like the chart's
		ObjectMeta: metav1.ObjectMeta{Name: "watchproxy-tls"},
		Data:       map[string][]byte{"ca.crt": w.API.CA, "tls.crt": []byte("certificate"), "tls.key": []byte("private key")},
	}
	_, err = w.Admin.CoreV1().Secrets(w.API.NamespaceT(t, "watchproxy")).Create(t.Context(), tls, metav1.CreateOptions{})
	must(t, err)
	return &shell{dir: dir}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// syncedBuffer is the output of a running process.
type syncedBuffer struct {
	mu   sync.Mutex
	said bytes.Buffer
}

// Write implements io.Writer.
func (b *syncedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.Write(p)
}

// String returns the output so far.
func (b *syncedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.String()
}

// run runs a command as in the document, except for the ports. serve runs until the end of the
// test. status --watch never ends by itself, so it is stopped after a moment.
func (s *shell) run(t *testing.T, command string) (output string, err error) {
	t.Helper()
	if strings.Contains(command, " serve ") {
		return s.start(t, command)
	}
	if s.replacements != nil {
		command = s.replacements.Replace(command)
	}
	if strings.HasPrefix(command, "bin/watchproxy status") {
		command += " --admin " + s.admin
	}
	bound := cluster.Limit
	if strings.Contains(command, "--watch") {
		bound = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := s.command(ctx, command)
	cmd.Cancel = func() error { // like Ctrl-C; the command's exit code then counts
		return errors.Join(cmd.Process.Signal(syscall.SIGINT), os.ErrProcessDone)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *shell) command(ctx context.Context, command string) *exec.Cmd {
	cmd := clients.Command(ctx, filepath.Join(s.dir, "home"), "bash", "-o", "pipefail", "-c", "exec "+command)
	cmd.Dir, cmd.Env = s.dir, append(cmd.Env, "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"))
	return cmd
}

// start starts a proxy and records its addresses.
func (s *shell) start(t *testing.T, command string) (output string, err error) {
	t.Helper()
	cmd := s.command(context.Background(), command+" --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0")
	said := &syncedBuffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	})
	ready := regexp.MustCompile(`ready: http://(\S+) \(admin (\S+)\)`)
	cluster.Eventually(t, "the proxy is ready", func() bool { return ready.MatchString(said.String()) })
	match := ready.FindStringSubmatch(said.String())
	s.admin = match[2]
	s.replacements = strings.NewReplacer("127.0.0.1:8001", match[1])
	return match[0], nil
}
