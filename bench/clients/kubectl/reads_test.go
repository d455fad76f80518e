package kubectl

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Reads that are not in TestCommands have the same output and exit code through the proxy, too.
func TestKubectlReads(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "kubectl-reads")
	w.DefineWidgets(t)
	for _, name := range []string{"a", "b", "c"} {
		w.CreatePod(t, ns, cluster.NewPod(name))
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"key": "välue <&>"}}
	if _, err := w.Admin.CoreV1().ConfigMaps(ns).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"password": "p"}}
	if _, err := w.Admin.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Dynamic.Resource(clients.Widgets).Namespace(ns).Create(t.Context(), clients.NewWidget("w"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	fronts := w.Fronts(t)
	for _, args := range [][]string{
		{"get", "pods", "-o", "yaml"},
		{"get", "pods", "--chunk-size", "1", "-o", "json"},
		{"get", "pod", "b", "-o", "jsonpath={.metadata.uid}"},
		{"get", "pods,configmaps,clients.Widgets", "-o", "custom-columns=KIND:.kind,NAME:.metadata.name"},
		{"get", "widget", "w", "-o", "yaml"},
		{"get", "secret", "secret", "-o", "json"},
		{"describe", "configmap", "settings"},
		{"describe", "widget", "w"},
		{"describe", "namespace", ns},
		{"describe", "pod", "missing"},
		{"wait", "pod", "a", "--for=condition=Ready", "--timeout=0s"},
		{"auth", "whoami"},
		{"get", "--raw", "/version"},
		{"get", "--raw", "/readyz?verbose"},
		{"get", "--raw", "/api/v1/namespaces/" + ns + "/pods/a?resourceVersion=0"},
		{"get", "--raw", "/nonsense"},
	} {
		t.Run(strings.ReplaceAll(strings.Join(args, " "), "/", "|"), func(t *testing.T) {
			same(t, fronts, clients.Kubectl(append([]string{"-n", ns}, args...)...))
		})
	}
}

// both runs a command with both servers at the same time.
func both[T any](run func(front int) T) (said [2]T) {
	var running sync.WaitGroup
	for front := range said {
		running.Go(func() { said[front] = run(front) })
	}
	running.Wait()
	return said
}

// same runs kubectl with both servers and compares the outcomes.
func same(t *testing.T, fronts [2]clients.Front, i clients.Invocation) clients.Outcome {
	t.Helper()
	said := both(func(front int) clients.Outcome { return fronts[front].Run(t, i) })
	want, got := said[0], said[1]
	if stable(got) != stable(want) {
		t.Errorf("kubectl %s\n--- %s\n%s--- %s\n%s", strings.Join(i.Args, " "), fronts[0].Name, stable(want), fronts[1].Name, stable(got))
	}
	if want.Code == 0 && want.Stdout == "" && want.Stderr == "" {
		t.Errorf("kubectl %s says nothing", strings.Join(i.Args, " "))
	}
	return got
}

var (
	// age matches kubectl's durations and the padding after them.
	age = regexp.MustCompile(`\b(\d+[dhms]){1,2}\b *|<invalid> *`)
	// logTime matches the beginning of a klog line.
	logTime = regexp.MustCompile(`(?m)^([EWI])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ `)
	// address matches a server's address, which differs between the two servers.
	address = regexp.MustCompile(`https?://127\.0\.0\.1:\d+`)
)

// stable returns the outcome without the parts that differ between two runs of the same command.
func stable(o clients.Outcome) string {
	mask := func(s string) string {
		s = logTime.ReplaceAllString(s, "$1 ")
		s = address.ReplaceAllString(s, "SERVER")
		return age.ReplaceAllString(s, "AGE ")
	}
	return mask(o.Stdout) + "--- standard error\n" + mask(o.Stderr) + "--- exit code " + strconv.Itoa(o.Code) + "\n"
}

// A kubectl without a discovery cache gets its documents through the proxy.
func TestKubectlWithoutItsCache(t *testing.T) {
	w := sharedWorld(t)
	w.DefineWidgets(t)
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, TLS: true})
	for _, args := range [][]string{{"api-resources"}, {"api-versions"}, {"explain", "pod.spec.containers"}, {"explain", "widget.spec"}, {"get", "widgets"}} {
		home := t.TempDir()
		fronts := w.Fronts(t)
		fronts[0].Home, fronts[1] = home, clients.FrontOf(t, p, home)
		same(t, fronts, clients.Kubectl(args...))
	}
}
