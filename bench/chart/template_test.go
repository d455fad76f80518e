package chart

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/config"
)

func TestLint(t *testing.T) {
	for name, values := range combinations(t) {
		lint := action.NewLint()
		lint.Strict, lint.Namespace = true, namespace
		result := lint.Run([]string{chartDir()}, values)
		if len(result.Errors) > 0 || result.TotalChartsLinted != 1 {
			t.Errorf("%s: %v", name, result.Errors)
		}
	}
}

// The proxy accepts the configuration of each combination, and the pod matches the configuration.
func TestConfigurations(t *testing.T) {
	for name, values := range combinations(t) {
		t.Run(name, func(t *testing.T) {
			all := render(t, values)
			c := configuration(t, all)
			pods := all.of("Deployment", "DaemonSet")
			if len(pods) == 0 {
				return
			}
			template, _, err := unstructured.NestedMap(pods[0].Object, "spec", "template")
			if err != nil {
				t.Fatal(err)
			}
			checkPod(t, as[corev1.PodTemplateSpec](t, &unstructured.Unstructured{Object: template}).Spec, c)
		})
	}
}

// checkPod compares the pod with its proxy's configuration.
func checkPod(t *testing.T, pod corev1.PodSpec, c *config.ProxyConfiguration) {
	t.Helper()
	container := pod.Containers[0]
	var pause int64
	if container.Lifecycle != nil {
		pause = container.Lifecycle.PreStop.Sleep.Seconds
	}
	const grace = 2 // time in seconds for connections to finish after the drain
	least := pause + int64(math.Ceil(c.Drain.Seconds())) + grace
	if got := *pod.TerminationGracePeriodSeconds; got < least {
		t.Errorf("the pod is killed after %d s, but may take %d to drain", got, least)
	}
	for _, file := range []string{c.Cache.Persistence.Directory, c.TLS.CertFile, c.TLS.PrivateKeyFile, c.Authentication.X509.ClientCAFile, c.Upstream.Kubeconfig} {
		if file != "" && !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
			return file == m.MountPath || strings.HasPrefix(file, m.MountPath+"/")
		}) {
			t.Errorf("nothing is mounted for %s", file)
		}
	}
	for _, m := range container.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("no volume %s", m.Name)
		}
	}
	for name, address := range map[string]string{"clients": c.Listen, "admin": c.AdminListen} {
		if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == name && strings.HasSuffix(address, fmt.Sprintf(":%d", p.ContainerPort))
		}) {
			t.Errorf("ports %v do not have %s for %s", container.Ports, address, name)
		}
	}
	if !*pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		!*container.SecurityContext.ReadOnlyRootFilesystem || *container.SecurityContext.AllowPrivilegeEscalation ||
		!slices.Equal(container.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security contexts %v and %v", pod.SecurityContext, container.SecurityContext)
	}
}

// The checksum in the pods' template changes only if the configuration does.
func TestChecksumRollsPods(t *testing.T) {
	const annotation = "checksum/config"
	checksum := func(values string) string {
		return as[appsv1.Deployment](t, render(t, parseValues(t, values)).one(t, "Deployment")).Spec.Template.Annotations[annotation]
	}
	first := checksum(`{}`)
	if first == "" {
		t.Fatal("no checksum")
	}
	if again := checksum(`{replicas: 3}`); again != first {
		t.Error("other replicas roll the pods")
	}
	if changed := checksum(`{config: {logLevel: debug}}`); changed == first {
		t.Error("another configuration does not roll the pods")
	}
}

func TestTerminationGracePeriod(t *testing.T) {
	for drain, want := range map[string]int64{"30s": 55, "1m30s": 115, "0.5h": 1825, "1500ms": 27, "0": 25} {
		values := map[string]any{"config": map[string]any{"drain": drain}}
		got := *as[appsv1.Deployment](t, render(t, values).one(t, "Deployment")).Spec.Template.Spec.TerminationGracePeriodSeconds
		if got != want {
			t.Errorf("drain %s: %d s instead of %d", drain, got, want)
		}
	}
}

func TestImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	version := loadChart(t).AppVersion()
	for values, want := range map[string]string{
		`{}`:                 "ghcr.io/watchproxy/watchproxy:" + version,
		`{image: {tag: v2}}`: "ghcr.io/watchproxy/watchproxy:v2",
		`{image: {tag: v2, digest: ` + digest + `}}`: "ghcr.io/watchproxy/watchproxy@" + digest,
		`{image: {repository: mirror/watchproxy}}`:   "mirror/watchproxy:" + version,
	} {
		got := as[appsv1.Deployment](t, render(t, parseValues(t, values)).one(t, "Deployment")).Spec.Template.Spec.Containers[0].Image
		if got != want {
			t.Errorf("%s: image %s instead of %s", values, got, want)
		}
	}
}

// An alert can be left out. The other alerts get the labels and the job of the monitor.
func TestPrometheusRule(t *testing.T) {
	rule := render(t, combinations(t)["monitored"]).one(t, "PrometheusRule")
	text, err := yaml.Marshal(rule.Object)
	if err != nil {
		t.Fatal(err)
	}
	for _, missing := range []string{"alert: WatchproxyDown", `job="` + namespace + "/" + releaseName + `"`, "team: platform", "severity: critical"} {
		if !strings.Contains(string(text), missing) {
			t.Errorf("no %s", missing)
		}
	}
	for _, wrong := range []string{"WatchproxyExpired", `job="watchproxy"`} {
		if strings.Contains(string(text), wrong) {
			t.Errorf("there is %s", wrong)
		}
	}
}

func TestNotes(t *testing.T) {
	for name, next := range map[string]string{
		"default":          "rollout status deployment/watchproxy",
		"daemonset":        "rollout status daemonset/watchproxy",
		"everything":       "Protect them.\n\nThe proxy may impersonate anybody",
		"claim":            "An empty list there grants nobody",
		"values-sidecar":   "watchproxy.sidecar.*",
		"existingclaim":    "/status",
		"publicissuer":     "for watchproxy.example.com only",
		"sidecarmonitored": "service account application",
	} {
		r, err := template(loadChart(t), combinations(t)[name])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.Info.Notes, next) {
			t.Errorf("%s: the notes do not tell %q:\n%s", name, next, r.Info.Notes)
		}
	}
}
