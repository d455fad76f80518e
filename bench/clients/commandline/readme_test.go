package commandline

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// elsewhere gives the reason for each command in the documents that this test does not run.
var elsewhere = map[string]string{
	"make demo":  "TestDemoExits and TestDemoIsInterrupted of bench/demo run what it builds",
	"make test":  "it runs this",
	"make build": "the same binary, by another name and with the race detector, runs here; TestFreshClone runs it",
	"bin/watchproxy serve --listen 0.0.0.0:6443 --tls-cert-file tls.crt --tls-private-key-file tls.key":                                            "bench/access runs it on loopback",
	"helm install watchproxy charts/watchproxy --namespace watchproxy --create-namespace":                                                          "bench/chart installs what it renders",
	"helm install watchproxy charts/watchproxy --namespace watchproxy --create-namespace --set kind=DaemonSet,service.internalTrafficPolicy=Local": "bench/chart renders it among others",
}

// firstAnswerCommands is the README's promise about the number of commands, including the build, up to
// the first answer from the cache.
const firstAnswerCommands = 3

// Every command in the documents works, in the given order, for a user who has only a kubeconfig.
// The test uses other ports than the documents, so that several runs do not collide.
func TestReadme(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	dir := t.TempDir()
	binary, err := cluster.BuildProxy(t.Context(), true)
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	must(t, os.Symlink(binary, filepath.Join(dir, "bin/watchproxy")))
	shell := newShell(t, w, dir)
	seen := false
	for _, document := range []string{"README.md", "cmd/watchproxy/README.md", "proxy/access/README.md", ".github/SUPPORT.md"} {
		commands := cluster.CommandsT(t, document)
		if len(commands) == 0 {
			t.Errorf("%s has no commands", document)
		}
		expected := outputsOf(t, document)
		for n, command := range commands {
			if why, ok := elsewhere[command]; ok {
				t.Logf("%s: not here: %s", command, why)
				continue
			}
			out, err := shell.run(t, command)
			t.Logf("%s\n%.300s", command, out)
			if err != nil {
				t.Errorf("%s: %s: %v\n%s", document, command, err, out)
			}
			if back := leadsBack.FindStringSubmatch(out); back != nil {
				if out, err := shell.run(t, back[1]); err != nil {
					t.Errorf("%s: %s: %v\n%s", document, back[1], err, out)
				}
			}
			if strings.Contains(out, "readme-pod") && !seen {
				seen = true
				if n >= firstAnswerCommands {
					t.Errorf("a newcomer needs %d commands", n+1)
				}
				shell.answersFromCache(t)
			}
			for _, line := range expected[command] {
				if !strings.Contains(moving.ReplaceAllString(out, " 0"), moving.ReplaceAllString(line, " 0")) {
					t.Errorf("%s: %s does not show %q:\n%s", document, command, line, out)
				}
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
			check := "kubectl create --dry-run=server --validate=strict -f "
			if strings.Contains(object, "\nkind: ProxyConfiguration\n") {
				check = "bin/watchproxy config validate "
			}
			if out, err := shell.run(t, check+path); err != nil {
				t.Errorf("%s: object %d: %v\n%s", document, i, err, out)
			}
		}
	}
	ca, err := w.Admin.CoreV1().ConfigMaps("team").Get(t.Context(), "watchproxy-ca", metav1.GetOptions{})
	if err != nil || len(ca.Data) != 1 || ca.Data["ca.crt"] != string(w.API.CA) {
		t.Errorf("the authority for clients in the cluster: %v, %v", ca, err)
	}
}

// leadsBack matches the command by which clients leave a context for the proxy.
var leadsBack = regexp.MustCompile(`'(kubectl config use-context [^']+)' leads back`)

// shown matches a command in a document, and the output that the document shows for it.
var shown = regexp.MustCompile("(?ms)^    ([^\n]+)\n\n```text\n(.*?)^```$")

// moving matches figures, sizes and ages, with the space before them.
var moving = regexp.MustCompile(`\s+([-0-9.]+( [KM]?i?B|[smh%])?)*`)

// outputsOf returns the lines of output that a document shows for its commands.
func outputsOf(t *testing.T, document string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), document))
	must(t, err)
	all := map[string][]string{}
	for _, match := range shown.FindAllStringSubmatch(string(text), -1) {
		all[match[1]] = strings.Split(strings.TrimSpace(match[2]), "\n")
	}
	return all
}

// fenced matches a Kubernetes object, or a configuration of the proxy, in a document.
var fenced = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```$")

func objectsOf(t *testing.T, document string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), document))
	must(t, err)
	for _, match := range fenced.FindAllStringSubmatch(string(text), -1) {
		all = append(all, match[1])
	}
	return all
}

// shell is a user's terminal, in a directory that contains bin/watchproxy. The home directory
// contains a kubeconfig, and kubectl is in the path.
type shell struct {
	dir, home    string
	admin        string            // the proxy's admin address, once it serves
	replacements *strings.Replacer // of ports
}

func newShell(t *testing.T, w *clients.World, dir string) *shell {
	t.Helper()
	content, err := os.ReadFile(w.API.Kubeconfig)
	must(t, err)
	s := &shell{dir: dir, home: t.TempDir()}
	for _, sub := range []string{"bin", ".kube"} {
		must(t, os.Mkdir(filepath.Join(s.home, sub), 0o755))
	}
	must(t, os.Symlink(cluster.KubectlT(t), filepath.Join(s.home, "bin/kubectl")))
	for path, what := range map[string][]byte{filepath.Join(s.home, ".kube/config"): content, filepath.Join(dir, "ca.crt"): w.API.CA} {
		must(t, os.WriteFile(path, what, 0o600))
	}
	w.CreatePod(t, w.Namespace(t, "readme"), cluster.NewPod("readme-pod"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "readme-node"}}
	_, err = w.Admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	w.API.NamespaceT(t, "team")
	ca := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watchproxy-ca"}, Data: map[string]string{"ca.crt": string(w.API.CA)}} // like the chart's
	_, err = w.Admin.CoreV1().ConfigMaps(w.API.NamespaceT(t, "watchproxy")).Create(t.Context(), ca, metav1.CreateOptions{})
	must(t, err)
	return s
}

// answersFromCache fails unless the proxy has answered a request for pods from its cache.
func (s *shell) answersFromCache(t *testing.T) {
	t.Helper()
	m := cluster.Metrics(clients.Get(t, s.admin+"/metrics"))
	if n := m.Sum("watchproxy_requests_total", `resource="pods"`, `source="cache"`); n < 1 {
		t.Errorf("%v requests for pods were answered from the cache", n)
	}
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
// test.
func (s *shell) run(t *testing.T, command string) (output string, err error) {
	t.Helper()
	if strings.Contains(command+" ", " serve ") {
		return s.start(t, command)
	}
	if s.replacements != nil {
		command = s.replacements.Replace(command)
	}
	if strings.Contains(command, "watchproxy status") {
		command += " --admin " + s.admin
	}
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	defer cancel()
	out, err := s.command(ctx, command).CombinedOutput()
	return string(out), err
}

func (s *shell) command(ctx context.Context, command string) *exec.Cmd {
	cmd := clients.Command(ctx, s.home, "bash", "-o", "pipefail", "-c", "exec "+command)
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(s.dir, "bin")+":"+filepath.Join(s.home, "bin")+":"+os.Getenv("PATH"))
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
	s.replacements = strings.NewReplacer("127.0.0.1:8001", match[1], "http://127.0.0.1:8002", s.admin)
	return match[0], nil
}
