package chart

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// elsewhere gives the reason for each command in the documents that TestDocuments does not run.
var elsewhere = map[string]string{
	"helm test watchproxy --namespace watchproxy --logs":                        "needs a kubelet: TestHelmTest is one",
	`kubectl --namespace NAMESPACE logs POD | grep -E '"level":"(warn|error)"'`: "needs a kubelet",
	"kubectl --namespace NAMESPACE port-forward POD 8002 &":                     "needs a kubelet: the next commands find a proxy at the port",
}

// Every command of the chart's documents works, in the given order, for a user who has a kubeconfig
// and a checkout. There is no kubelet, so the proxy of the runbook runs as a process.
func TestDocuments(t *testing.T) {
	t.Parallel()
	api := sharedWorld(t).api
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig})
	home := t.TempDir()
	bin := filepath.Join(home, "bin")
	must(t, os.Mkdir(bin, 0o700))
	watchproxy, err := cluster.BuildProxy(t.Context(), true)
	must(t, err)
	must(t, os.Symlink(watchproxy, filepath.Join(bin, "watchproxy")))
	must(t, os.Symlink(cluster.KubectlT(t), filepath.Join(bin, "kubectl")))
	helm, err := exec.CommandContext(t.Context(), "go", "tool", "-n", "helm").Output() // Go keeps it linked
	must(t, err)
	must(t, os.Symlink(strings.TrimSpace(string(helm)), filepath.Join(bin, "helm")))
	secrets := api.Client().CoreV1().Secrets("watchproxy")
	ports := strings.NewReplacer("http://127.0.0.1:8002", p.AdminURL)
	for _, document := range []string{"charts/watchproxy/README.md", "charts/watchproxy/runbook.md"} {
		commands := cluster.CommandsT(t, document)
		if len(commands) < 4 {
			t.Errorf("%s has only the commands %q", document, commands)
		}
		for _, command := range commands {
			if why, ok := elsewhere[command]; ok {
				t.Logf("%s: not here: %s", command, why)
				continue
			}
			if strings.Contains(command, "patch secret watchproxy-generated-ca") { // a proxy in the cluster makes it
				o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "watchproxy-generated-ca"}}
				if _, err := secrets.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					t.Logf("the Secret is there: %v", err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", ports.Replace(command))
			cmd.Dir = cluster.Root()
			cmd.Env = append(os.Environ(), "KUBECONFIG="+api.Kubeconfig, "KUBECACHEDIR="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "PATH="+bin+":"+os.Getenv("PATH"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
			out, err := cmd.CombinedOutput()
			cancel()
			t.Logf("%s\n%.300s", command, out)
			if err != nil || len(out) == 0 && !strings.Contains(command, "--ignore-not-found") {
				t.Errorf("%s: %s: %v\n%s", document, command, err, out)
			}
		}
	}
}
