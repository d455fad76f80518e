package clients

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Every way in which kubectl reads has the same output and exit code through the proxy.
func TestKubectlReads(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "kubectl-reads")
	newWidgets(t, w)
	for _, name := range []string{"a", "b", "c"} {
		w.createPod(t, ns, pod(name))
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"key": "välue <&>"}}
	if _, err := w.admin.CoreV1().ConfigMaps(ns).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"password": "p"}}
	if _, err := w.admin.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dynamic.Resource(widgets).Namespace(ns).Create(t.Context(), widget("w"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	fronts := w.fronts(t)
	for _, args := range [][]string{
		{"get", "pods"},
		{"get", "pods", "-o", "wide", "--show-labels"},
		{"get", "pods", "-o", "yaml"},
		{"get", "pods", "-o", "json"},
		{"get", "pods", "-o", "name", "-l", "app=test"},
		{"get", "pods", "-l", "app!=test"},
		{"get", "pods", "--field-selector", "metadata.name=b"},
		{"get", "pods", "--field-selector", "status.phase=Running"},
		{"get", "pods", "--field-selector", "no.such.field=1"},
		{"get", "pods", "--chunk-size", "1", "-o", "json"},
		{"get", "pods", "--sort-by", "{.metadata.name}"},
		{"get", "pod", "b", "-o", "jsonpath={.metadata.uid}"},
		{"get", "pod", "missing"},
		{"get", "nonsense"},
		{"get", "all"},
		{"get", "pods,configmaps,widgets", "-o", "custom-columns=KIND:.kind,NAME:.metadata.name"},
		{"get", "widgets"},
		{"get", "widget", "w", "-o", "yaml"},
		{"get", "secret", "secret", "-o", "json"},
		{"get", "namespace", ns, "-o", "json"},
		{"describe", "pod", "a"},
		{"describe", "pods"},
		{"describe", "configmap", "settings"},
		{"describe", "widget", "w"},
		{"describe", "namespace", ns},
		{"describe", "pod", "missing"},
		{"wait", "pod", "a", "--for=jsonpath={.metadata.labels.app}=test", "--timeout=10s"},
		{"wait", "pod", "a", "--for=condition=Ready", "--timeout=1s"},
		{"events"},
		{"api-resources", "--no-headers"},
		{"api-versions"},
		{"explain", "pod.spec.containers"},
		{"explain", "widget.spec"},
		{"auth", "can-i", "delete", "pods"},
		{"auth", "whoami"},
		{"get", "--raw", "/version"},
		{"get", "--raw", "/readyz?verbose"},
		{"get", "--raw", "/api/v1/namespaces/" + ns + "/pods/a?resourceVersion=0"},
		{"get", "--raw", "/nonsense"},
	} {
		t.Run(strings.ReplaceAll(strings.Join(args, " "), "/", "|"), func(t *testing.T) {
			same(t, fronts, kubectl(append([]string{"-n", ns}, args...)...))
		})
	}
}

// same runs kubectl in front of both servers and compares what it says.
func same(t *testing.T, fronts [2]front, i invocation) outcome {
	t.Helper()
	want, got := fronts[0].run(t, i), fronts[1].run(t, i)
	if got.stable() != want.stable() {
		t.Errorf("kubectl %s\n--- %s\n%s--- %s\n%s", strings.Join(i.args, " "), fronts[0].name, want.stable(), fronts[1].name, got.stable())
	}
	if want.code == 0 && want.stdout == "" && want.stderr == "" {
		t.Errorf("kubectl %s says nothing", strings.Join(i.args, " "))
	}
	return got
}

var (
	// age is how kubectl writes durations, with the padding behind them.
	age = regexp.MustCompile(`\b(\d+[dhms]){1,2}\b *|<invalid> *`)
	// logTime begins a line of klog's.
	logTime = regexp.MustCompile(`(?m)^([EWI])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ `)
	// address differs between the two servers.
	address = regexp.MustCompile(`https?://127\.0\.0\.1:\d+`)
)

// stable is the outcome without what two runs of the same command differ in.
func (o outcome) stable() string {
	mask := func(s string) string {
		s = logTime.ReplaceAllString(s, "$1 ")
		s = address.ReplaceAllString(s, "SERVER")
		return age.ReplaceAllString(s, "AGE ")
	}
	return mask(o.stdout) + "--- standard error\n" + mask(o.stderr) + "--- exit code " + strconv.Itoa(o.code) + "\n"
}
