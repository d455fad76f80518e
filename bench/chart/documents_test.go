package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// elsewhere gives the reason for each command in the documents that TestDocuments does not run.
var elsewhere = map[string]string{
	"helm test watchproxy --namespace watchproxy --logs":                        "needs a kubelet: TestInstallation is one",
	`kubectl --namespace NAMESPACE logs POD | grep -E '"level":"(warn|error)"'`: "needs a kubelet",
	"kubectl --namespace NAMESPACE port-forward POD 8002 &":                     "needs a kubelet: the next commands find a proxy at the port",
}

// Every command of the chart's documents works, in the given order, for a user who has a kubeconfig
// and a checkout. There is no kubelet, so the proxy of the runbook runs as a process.
func TestDocuments(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.api.Kubeconfig})
	bin := t.TempDir()
	watchproxy, err := cluster.BuildProxy(t.Context(), true)
	must(t, err)
	helm, err := exec.CommandContext(t.Context(), "go", "tool", "-n", "helm").Output() // Go keeps it linked
	must(t, err)
	for name, path := range map[string]string{"watchproxy": watchproxy, "kubectl": cluster.KubectlT(t), "helm": strings.TrimSpace(string(helm))} {
		must(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	for _, document := range []string{"charts/watchproxy/README.md", "charts/watchproxy/runbook.md"} {
		for _, command := range cluster.CommandsT(t, document) {
			if elsewhere[command] != "" {
				continue
			}
			if strings.Contains(command, "patch secret watchproxy-generated-ca") { // a proxy in the cluster makes it
				o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "watchproxy-generated-ca"}}
				if _, err := w.admin.CoreV1().Secrets("watchproxy").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					t.Logf("the Secret is there: %v", err)
				}
			}
			out, err := w.shell(t, strings.ReplaceAll(command, "http://127.0.0.1:8002", p.AdminURL), cluster.Root(), bin)
			if err != nil || len(out) == 0 && !strings.Contains(command, "--ignore-not-found") {
				t.Errorf("%s: %s: %v\n%s", document, command, err, out)
			}
		}
	}
}
