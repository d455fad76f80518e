package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The chart is installed as it is. The commands of its notes work. The pod of `helm test` succeeds, and
// fails if the proxy does not work. An uninstallation leaves nothing. There is no kubelet: the proxy and
// the pod run as processes, with the arguments, files and credentials that the chart gives them.
func TestInstallation(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	r := w.release(t, "installed")
	all := r.install(t, true)
	p, token := w.proxy(t, r.ns, all, false), w.token(t, r.ns)
	r.notesLead(t, p, all)

	const soon = 5 * time.Second // for tests that try until they fail
	for name, broken := range map[string]struct{ url, token, says string }{
		"the Service leads to another server":   {w.api.URL, token, "no success"},
		"the proxy does not accept the account": {p.URL, "invalid", "Unauthorized"},
	} {
		if output, err := r.test(t, broken.url, broken.token, soon); err == nil || !strings.Contains(output, broken.says) {
			t.Errorf("%s: %v, and the test says %q", name, err, output)
		}
	}
	before := fromCache(t, p)
	if output, err := r.test(t, p.URL, token, limit); err != nil || fromCache(t, p) == before {
		t.Errorf("%v, or it does not read from the cache\n%s", err, output)
	}
	must(t, w.admin.CoreV1().Pods(r.ns).DeleteCollection(t.Context(), *metav1.NewDeleteOptions(0), metav1.ListOptions{}))
	r.uninstall(t)
}

// fromCache returns the number of lists of namespaces that the cache has answered.
func fromCache(t *testing.T, p *cluster.Proxy) float64 {
	t.Helper()
	return p.MetricsT(t).Sum("watchproxy_requests_total", `resource="namespaces"`, `source="cache"`)
}

// notesLead runs the commands of the notes, in order. The first request is answered from the cache.
// A port-forward only records its arguments.
func (r *release) notesLead(t *testing.T, p *cluster.Proxy, all objects) {
	t.Helper()
	template := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name = releaseName + "-0"
	pod, err := r.w.admin.CoreV1().Pods(r.ns).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	pod.Status.Phase = corev1.PodRunning
	_, err = r.w.admin.CoreV1().Pods(r.ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	script := ""
	for line := range strings.Lines(r.first.Info.Notes) {
		command, ok := strings.CutPrefix(line, "    ")
		if ok && !strings.HasPrefix(command, "helm ") && !strings.HasPrefix(command, "  --set") && !strings.Contains(command, " rollout ") {
			script += command
		}
	}
	script = strings.NewReplacer("https://127.0.0.1:8443", "https://"+p.Address(), "http://127.0.0.1:8002", p.AdminURL).Replace(script)
	dir := t.TempDir()
	stub := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" port-forward \"*) echo \"$*\" >forwarded; exec sleep 600; esac\nexec %q \"$@\"\n", cluster.KubectlT(t))
	must(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(stub), 0o700))
	out, err := r.w.shell(t, script+"kill %%\n", dir, dir)
	if err != nil || fromCache(t, p) != 1 {
		t.Errorf("%v, or the cache has not answered once\n%s\n%s", err, script, out)
	}
	forwarded, err := os.ReadFile(filepath.Join(dir, "forwarded"))
	if want := "-n " + r.ns + " port-forward pod/" + releaseName + "-0 8443:6443 8002:8002\n"; err != nil || string(forwarded) != want {
		t.Errorf("it forwards %q instead of %q: %v", forwarded, want, err)
	}
}

// shell runs commands as a user who has a kubeconfig. The directory bin comes first in the path.
func (w *world) shell(t *testing.T, script, dir, bin string) (out []byte, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+bin, "HELM_CACHE_HOME="+bin, "HELM_CONFIG_HOME="+bin, "HELM_DATA_HOME="+bin,
		"KUBECACHEDIR="+bin, "KUBECONFIG="+w.api.Kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.CombinedOutput()
}

// test runs the pod of `helm test` until the deadline. The release's Service leads to a URL. test also
// returns what the pod prints.
func (r *release) test(t *testing.T, url, token string, deadline time.Duration) (output string, err error) {
	t.Helper()
	hook := r.first.Hooks[0]
	if hook.Events[0] != releasev1.HookTest {
		t.Errorf("helm test does not run %s", hook.Path)
	}
	pod := as[corev1.Pod](t, parseObjects(t, hook.Manifest).one(t, "Pod"))
	c, dir := pod.Spec.Containers[0], t.TempDir()
	files := map[string]string{"token/token": token} // a cluster adds this volume
	for _, v := range pod.Spec.Volumes {
		mounted, err := r.w.admin.CoreV1().ConfigMaps(r.ns).Get(t.Context(), v.ConfigMap.Name, metav1.GetOptions{})
		must(t, err)
		for name, content := range mounted.Data {
			files[v.Name+"/"+name] = content
		}
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)))
	}
	host := releaseName + "." + r.ns + ".svc"
	args := strings.ReplaceAll(strings.Join(c.Args, "\x00"), "https://"+host+":443", url)
	for _, m := range append(c.VolumeMounts, corev1.VolumeMount{Name: "token", MountPath: cluster.AccountPath}) {
		args = strings.ReplaceAll(args, "="+m.MountPath+"/", "="+filepath.Join(dir, m.Name)+"/")
	}
	binary, err := cluster.BuildProxy(t.Context(), true)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(strings.Split(args, "\x00"), "--tls-server-name="+host)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.CombinedOutput()
	return string(out), err
}
