package commandline

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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
	"make build": "the same binary, by another name and with the race detector, runs here; CI runs it",
	"bin/watchproxy serve --listen 0.0.0.0:6443 --tls-cert-file tls.crt --tls-private-key-file tls.key":                                            "bench/access runs it on loopback",
	"helm install watchproxy charts/watchproxy --namespace watchproxy --create-namespace":                                                          "bench/chart installs what it renders",
	"helm install watchproxy charts/watchproxy --namespace watchproxy --create-namespace --set kind=DaemonSet,service.internalTrafficPolicy=Local": "bench/chart renders it among others",
}

// commandsRun says where the commands of each document run.
var commandsRun = map[string]string{
	"README.md":                    "here",
	"cmd/watchproxy/README.md":     "here",
	"proxy/access/README.md":       "here",
	".github/SUPPORT.md":           "here",
	"charts/watchproxy/README.md":  "TestDocuments of bench/chart",
	"charts/watchproxy/runbook.md": "TestDocuments of bench/chart",
	".github/CONTRIBUTING.md":      "targets of make; make test runs this",
	".github/SECURITY.md":          "nowhere: they verify a published release, which needs the network",
}

// link matches a link to a file of the repository.
var link = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)\s]*)?\)`)

// The commands of each document run somewhere, and its links lead to files.
func TestDocuments(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "git", "-C", cluster.Root(), "ls-files", "*.md").Output()
	cluster.MustT(t, err)
	for name := range strings.FieldsSeq(string(out)) {
		if commands := cluster.CommandsT(t, name); len(commands) > 0 && commandsRun[name] == "" {
			t.Errorf("%s: no test runs its commands: %q", name, commands)
		}
		text, err := os.ReadFile(filepath.Join(cluster.Root(), name))
		cluster.MustT(t, err)
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(cluster.Root(), filepath.Dir(name), match[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Every command in the documents works, in the given order, for a user who has only a kubeconfig.
// The first reads come from the cache. The test uses other ports than the documents, so that several
// runs do not collide.
func TestReadme(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	dir := t.TempDir()
	binary, err := cluster.BuildProxy(t.Context(), true)
	cluster.MustT(t, err)
	cluster.MustT(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	cluster.MustT(t, os.Symlink(binary, filepath.Join(dir, "bin/watchproxy")))
	shell := newShell(t, w, dir)
	for _, document := range []string{"README.md", "cmd/watchproxy/README.md", "proxy/access/README.md", ".github/SUPPORT.md"} {
		for _, command := range cluster.CommandsT(t, document) {
			if why, ok := elsewhere[command]; ok {
				t.Logf("%s: not here: %s", command, why)
				continue
			}
			out, err := shell.run(t, command)
			t.Logf("%s\n%.300s", command, out)
			if err != nil || out == "" && strings.HasPrefix(command, "kubectl") {
				t.Errorf("%s: %s: %v\n%s", document, command, err, out)
			}
			if strings.HasSuffix(command, " get pods -A") {
				shell.answersFromCache(t)
			}
		}
		for i, object := range objectsOf(t, document) {
			path := filepath.Join(dir, "object.yaml")
			cluster.MustT(t, os.WriteFile(path, []byte(object), 0o600))
			check := "kubectl create --dry-run=server --validate=strict -f "
			if strings.Contains(object, "\nkind: ProxyConfiguration\n") {
				check = "bin/watchproxy config validate "
			}
			if out, err := shell.run(t, check+path); err != nil {
				t.Errorf("%s: object %d: %v\n%s", document, i, err, out)
			}
		}
	}
}

// fenced matches a Kubernetes object, or a configuration of the proxy, in a document.
var fenced = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```$")

func objectsOf(t *testing.T, document string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), document))
	cluster.MustT(t, err)
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
	cluster.MustT(t, err)
	s := &shell{dir: dir, home: t.TempDir()}
	for _, sub := range []string{"bin", ".kube"} {
		cluster.MustT(t, os.Mkdir(filepath.Join(s.home, sub), 0o755))
	}
	cluster.MustT(t, os.Symlink(cluster.KubectlT(t), filepath.Join(s.home, "bin/kubectl")))
	for path, what := range map[string][]byte{filepath.Join(s.home, ".kube/config"): content, filepath.Join(dir, "ca.crt"): w.API.CA} {
		cluster.MustT(t, os.WriteFile(path, what, 0o600))
	}
	w.CreatePod(t, w.Namespace(t, "readme"), cluster.NewPod("readme-pod"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "readme-node"}}
	_, err = w.Admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	cluster.MustT(t, err)
	w.API.NamespaceT(t, "team")
	ca := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watchproxy-ca"}, Data: map[string]string{"ca.crt": string(w.API.CA)}} // like the chart's
	_, err = w.Admin.CoreV1().ConfigMaps(w.API.NamespaceT(t, "watchproxy")).Create(t.Context(), ca, metav1.CreateOptions{})
	cluster.MustT(t, err)
	return s
}

// answersFromCache fails unless the proxy has answered a request for pods from its cache.
func (s *shell) answersFromCache(t *testing.T) {
	t.Helper()
	m := cluster.Metrics(cluster.EndpointT(t, "admin", s.admin, "", nil).GetT(t, "/metrics", nil).Body)
	if n := m.Sum("watchproxy_requests_total", `resource="pods"`, `source="cache"`); n < 1 {
		t.Errorf("%v requests for pods were answered from the cache", n)
	}
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
	said, err := os.Create(filepath.Join(t.TempDir(), "output"))
	cluster.MustT(t, err)
	cmd.Stdout, cmd.Stderr = said, said
	if err := errors.Join(cmd.Start(), said.Close()); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	})
	ready := regexp.MustCompile(`ready: http://(\S+) \(admin (\S+)\)`)
	var match []string
	cluster.Eventually(t, "the proxy is ready", func() bool {
		text, err := os.ReadFile(said.Name())
		cluster.MustT(t, err)
		match = ready.FindStringSubmatch(string(text))
		return match != nil
	})
	s.admin = match[2]
	s.replacements = strings.NewReplacer("127.0.0.1:8001", match[1], "http://127.0.0.1:8002", s.admin)
	return match[0], nil
}
