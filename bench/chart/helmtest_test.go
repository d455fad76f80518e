package chart

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/config"
)

// `helm test` succeeds against a proxy that makes its own certificate, and fails if the proxy does not
// work. The proxy and the test's pod run as processes, with the arguments, files and credentials that
// the chart gives them.
func TestHelmTest(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	r := w.release(t, "tested")
	p, token := r.proxy(t, configuration(t, r.install(t, parseValues(t, `{cachedResources: [namespaces, pods]}`))))
	const soon = 5 * time.Second // for tests that try until they fail
	for name, broken := range map[string]struct{ address, token, says string }{
		"nobody listens":                        {freeAddress(t), token, "no success"},
		"the Service leads to another server":   {strings.TrimPrefix(w.api.URL, "https://"), token, "no success"},
		"the proxy does not accept the account": {p.Address(), "invalid", "Unauthorized"},
	} {
		if output, err := r.test(t, broken.address, broken.token, soon); err == nil || !strings.Contains(output, broken.says) {
			t.Errorf("%s: %v, and the test says %q", name, err, output)
		}
	}
	output, err := r.test(t, p.Address(), token, limit)
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	if n := p.MetricsT(t).Sum("watchproxy_requests_total", `verb="list"`, `resource="namespaces"`, `source="cache"`); n == 0 {
		t.Error("the test does not read from the cache")
	}
	r.uninstall(t)
}

// test runs `helm test`, whose pod may run until the deadline. The release's Service leads to an
// address. test also returns what the pod prints.
func (r *release) test(t *testing.T, address, token string, deadline time.Duration) (output string, err error) {
	t.Helper()
	k := &kubelet{w: r.w, ns: r.ns, token: token, deadline: deadline, network: serviceNetwork(t, r.host(), address)}
	wait := k.start(t)
	test := action.NewReleaseTesting(r.helm)
	test.Namespace, test.Timeout = r.ns, limit
	_, cleanUp, err := test.Run(releaseName)
	wait()
	return k.output, errors.Join(err, cleanUp())
}

// host returns the address of the release's Service.
func (r *release) host() string { return releaseName + "." + r.ns + ".svc:443" }

// user returns the name of the proxy's service account.
func (r *release) user() string { return "system:serviceaccount:" + r.ns + ":" + releaseName }

// proxy starts a proxy with the release's configuration, as its service account. It also returns
// the service account's token.
func (r *release) proxy(t *testing.T, c *config.ProxyConfiguration) (p *cluster.Proxy, token string) {
	t.Helper()
	r.w.awaitRights(t, r.user(),
		authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		authorizationv1.ResourceAttributes{Verb: "list", Resource: "namespaces"},
		authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"},
		authorizationv1.ResourceAttributes{Verb: "update", Resource: "secrets", Namespace: r.ns, Name: c.TLS.Generated.SecretName},
		authorizationv1.ResourceAttributes{Verb: "update", Resource: "configmaps", Namespace: r.ns, Name: c.TLS.Generated.ConfigMapName})
	token = r.w.identity(t, r.ns, releaseName).BearerToken
	text, err := yaml.Marshal(c)
	must(t, err)
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, text, 0o600))
	kubeconfig := r.w.api.KubeconfigT(t, r.w.api.URL, token)
	return cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, Args: []string{"--config", file, "--authentication", "delegated"}}), token
}

// serviceNetwork returns the URL of a proxy for CONNECT that knows one host.
func serviceNetwork(t *testing.T, host, address string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != host {
			http.Error(w, "no such service", http.StatusBadGateway)
			return
		}
		var d net.Dialer
		to, err := d.DialContext(r.Context(), "tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, ahead, err := w.(http.Hijacker).Hijack() // the server may have read ahead
		if err != nil {
			return
		}
		defer from.Close()
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(to, ahead); _ = to.Close() })
		both.Go(func() { _, _ = io.Copy(from, to); _ = from.Close() })
		both.Wait()
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// kubelet runs the first pod that appears in a namespace as a process.
type kubelet struct {
	w                  *world
	ns, token, network string
	deadline           time.Duration // of the pod, like its activeDeadlineSeconds
	output             string        // of the pod
}

// start returns a function that waits until the pod has run.
func (k *kubelet) start(t *testing.T) (wait func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	pods, err := k.w.admin.CoreV1().Pods(k.ns).Watch(ctx, metav1.ListOptions{})
	must(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for e := range pods.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Added && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil {
				k.run(ctx, t, pod)
				return
			}
		}
	})
	return func() { defer cancel(); running.Wait(); pods.Stop() }
}

func (k *kubelet) run(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	c := pod.Spec.Containers[0]
	binary, err := cluster.BuildProxy(ctx, true)
	if err != nil {
		t.Error(err)
	}
	running, cancel := context.WithTimeout(ctx, k.deadline)
	defer cancel()
	cmd := exec.CommandContext(running, binary, k.translated(ctx, t, pod)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env = []string{"HTTPS_PROXY=" + k.network}
	out, err := cmd.CombinedOutput()
	k.output = string(out)
	pod.Status.Phase = corev1.PodSucceeded
	if err != nil {
		pod.Status.Phase = corev1.PodFailed
	}
	if _, err := k.w.admin.CoreV1().Pods(k.ns).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Errorf("container %s: %v", c.Name, err)
	}
}

// translated returns the arguments of the pod's container. The files of its volumes are in a
// directory of the test.
func (k *kubelet) translated(ctx context.Context, t *testing.T, pod *corev1.Pod) []string {
	c, dir := pod.Spec.Containers[0], t.TempDir()
	write := func(volume, name, content string) {
		if err := os.MkdirAll(filepath.Join(dir, volume), 0o700); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, volume, name), []byte(content), 0o600); err != nil {
			t.Error(err)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		mounted, err := k.w.admin.CoreV1().ConfigMaps(k.ns).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		for name, content := range mounted.Data {
			write(v.Name, name, content)
		}
	}
	// In a cluster, this volume is added when the pod is created.
	write("token", "token", k.token)
	text := strings.Join(c.Args, "\x00")
	for _, m := range append(c.VolumeMounts, corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}) {
		text = strings.ReplaceAll(text, "="+m.MountPath+"/", "="+filepath.Join(dir, m.Name)+"/")
	}
	return strings.Split(text, "\x00")
}
