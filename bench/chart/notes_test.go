package chart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestNotes(t *testing.T) {
	for name, next := range map[string]string{
		"default":          "rollout status deployment/watchproxy",
		"daemonset":        "rollout status daemonset/watchproxy",
		"everything":       "Protect them.\n\nThe proxy may impersonate anybody",
		"single":           "An empty list there grants nobody",
		"values-sidecar":   "watchproxy.sidecar.*",
		"sidecarplain":     "watchproxy.sidecar.*",
		"bare":             "/status",
		"ownfiles":         "See the cached resources of one of the pods",
		"publicissuer":     "--tls-server-name watchproxy.example.com \\\n",
		"sidecarmonitored": "service account application",
	} {
		r, err := template(loadChart(t), combinations(t)[name])
		must(t, err)
		if !strings.Contains(r.Info.Notes, next) {
			t.Errorf("%s: the notes do not tell %q:\n%s", name, next, r.Info.Notes)
		}
	}
}

// With hostNetwork, loopback has only the paths in alwaysAllowPaths. Without /status there, the notes
// don't read it, and name the value.
func TestNotesReadOpenPaths(t *testing.T) {
	const node, admin = "{kind: DaemonSet, hostNetwork: true", ", config: {adminAuthentication: {"
	for values, open := range map[string]bool{
		node + "}":                          false,
		node + ", cachedResources: [pods]}": false,
		node + admin + "alwaysAllowPaths: [/livez, /readyz, /status]}}}": true,
		node + admin + "restrictLoopback: false}}}":                      true,
		"{kind: DaemonSet" + admin + "restrictLoopback: true}}}":         false,
	} {
		r, err := template(loadChart(t), parseValues(t, values))
		must(t, err)
		for text, want := range map[string]bool{"8002/status": open, "its status counts it": open, "add /status to config.adminAuthentication.alwaysAllowPaths": !open} {
			if strings.Contains(r.Info.Notes, text) != want {
				t.Errorf("%s: the notes tell %q: %t, want %t:\n%s", values, text, !want, want, r.Info.Notes)
			}
		}
	}
}

// The commands in the notes work in the given order. The first request is answered from the cache.
// The README shows its output and the status. There is no kubelet, so the proxy runs as a process,
// and the port-forward only records its arguments.
func TestCommandsOfTheNotes(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	r := w.release(t, "noted")
	all := r.install(t, nil)
	p, _ := r.proxy(t, configuration(t, all))
	w.rollOut(t, as[appsv1.Deployment](t, all.one(t, "Deployment")))

	dir := t.TempDir()
	stub := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" port-forward \"*) echo \"$*\" >forwarded; exec sleep 600; esac\nexec %q \"$@\"\n", cluster.KubectlT(t))
	must(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(stub), 0o700))
	ports := strings.NewReplacer("https://127.0.0.1:8443", "https://"+p.Address(), "http://127.0.0.1:8002", p.AdminURL)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", ports.Replace(commandsIn(r.notes))+"kill %%\n")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+w.api.Kubeconfig, "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s\n%s", err, r.notes, out)
	}
	forwarded, err := os.ReadFile(filepath.Join(dir, "forwarded"))
	if want := "-n noted port-forward pod/" + releaseName + "-0 8443:6443 8002:8002\n"; err != nil || string(forwarded) != want {
		t.Errorf("it forwards %q instead of %q: %v", forwarded, want, err)
	}
	if n := p.MetricsT(t).Sum("watchproxy_requests_total", `resource="namespaces"`, `source="cache"`); n != 1 {
		t.Errorf("%v requests were answered from the cache\n%s", n, out)
	}
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "README.md"))
	must(t, err)
	_, section, _ := strings.Cut(string(text), "## Start in a cluster\n")
	shown := regexp.MustCompile("(?s)\n```text\n(.*?)```").FindStringSubmatch(section)
	if shown == nil {
		t.Fatal("the README does not show the output")
	}
	version := regexp.MustCompile(`"resourceVersion":"\d+"`)
	for line := range strings.Lines(shown[1]) {
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "…")
		if !strings.Contains(version.ReplaceAllString(string(out), ""), version.ReplaceAllString(line, "")) {
			t.Errorf("the README shows %q, and this is the output:\n%s", line, out)
		}
	}
	must(t, w.admin.CoreV1().Pods(r.ns).DeleteCollection(t.Context(), *metav1.NewDeleteOptions(0), metav1.ListOptions{}))
	r.uninstall(t)
}

// commandsIn returns the commands in a text as a script, except those of Helm.
func commandsIn(text string) (script string) {
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "    "); ok && !strings.HasPrefix(command, "helm ") && !strings.HasPrefix(command, "  --set") {
			script += command
		}
	}
	return script
}

// rollOut does what the controllers and kubelets do with a Deployment, as far as the notes see it.
// It leaves one pod.
func (w *world) rollOut(t *testing.T, d appsv1.Deployment) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	pod.Name = releaseName + "-0"
	pod, err := w.admin.CoreV1().Pods(d.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	pod.Status.Phase = corev1.PodRunning
	_, err = w.admin.CoreV1().Pods(d.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	is, err := w.admin.AppsV1().Deployments(d.Namespace).Get(t.Context(), d.Name, metav1.GetOptions{})
	must(t, err)
	n := *is.Spec.Replicas
	is.Status = appsv1.DeploymentStatus{ObservedGeneration: is.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	_, err = w.admin.AppsV1().Deployments(d.Namespace).UpdateStatus(t.Context(), is, metav1.UpdateOptions{})
	must(t, err)
}
