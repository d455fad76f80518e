package chart

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/config"
)

func TestLint(t *testing.T) {
	t.Parallel()
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
	t.Setenv("POD_NAMESPACE", namespace) // as in the pods of the examples
	t.Setenv("NODE_NAME", "node")
	for name, values := range combinations(t) {
		t.Run(name, func(t *testing.T) {
			all := render(t, values)
			c := configuration(t, all)
			pods := all.of("Deployment", "DaemonSet")
			if len(pods) == 0 {
				return
			}
			template, _, err := unstructured.NestedMap(pods[0].Object, "spec", "template")
			must(t, err)
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
	var policy string
	if c.Audit != nil {
		policy = c.Audit.PolicyFile
	}
	for _, file := range []string{policy, c.TLS.CertFile, c.TLS.PrivateKeyFile, c.Authentication.X509.ClientCAFile, c.Upstream.Kubeconfig, c.Upstream.CAFile} {
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

// The README's example of an audit log mounts a policy that the proxy takes.
func TestAuditLog(t *testing.T) {
	all := render(t, combinations(t)["audit"])
	c := configuration(t, all)
	if c.Audit == nil || c.Audit.LogPath != "-" {
		t.Fatalf("there is no audit log: %+v", c.Audit)
	}
	dir, name := filepath.Split(c.Audit.PolicyFile)
	pod := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template.Spec
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.MountPath+"/" != dir {
			continue
		}
		volume := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		for _, o := range all.of("ConfigMap") {
			if o.GetName() != volume.ConfigMap.Name || o.GetNamespace() != namespace {
				continue
			}
			c.Audit.PolicyFile = filepath.Join(t.TempDir(), name)
			must(t, os.WriteFile(c.Audit.PolicyFile, []byte(as[corev1.ConfigMap](t, o).Data[name]), 0o600))
			if errs := c.Audit.CheckPolicy(field.NewPath("audit")); len(errs) > 0 {
				t.Error(errs.ToAggregate())
			}
			return
		}
	}
	t.Errorf("no ConfigMap has %s", c.Audit.PolicyFile)
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
	if again := checksum(`{replicaCount: 3}`); again != first {
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
		`{image: {registry: mirror}}`:                "mirror/watchproxy/watchproxy:" + version,
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
	must(t, err)
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

// The alerts of a certificate that cert-manager renews late fire only after it should have done so.
func TestAlertsOfShortCertificates(t *testing.T) {
	for values, want := range map[string][2]string{
		`tls: {mode: generated}`:   {"604800", "86400"},
		`tls: {mode: certManager}`: {"604800", "86400"},
		`tls: {mode: certManager, certManager: {duration: 168h, renewBefore: 56h}}`:  {"100800", "50400"},
		`tls: {mode: certManager, certManager: {duration: 24h, renewBefore: 480m}}`:  {"14400", "7200"},
		`tls: {mode: secret, secret: {name: a}, certManager: {renewBefore: "2h"}}`:   {"604800", "86400"},
		`tls: {mode: certManager, certManager: {duration: 720h, renewBefore: 240h}}`: {"432000", "86400"},
	} {
		rule := render(t, parseValues(t, `{monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}}, `+values+`}`)).one(t, "PrometheusRule")
		groups, _, err := unstructured.NestedSlice(rule.Object, "spec", "groups")
		must(t, err)
		for i, alert := range []string{"WatchproxyServingCertificateExpires", "WatchproxyServingCertificateExpiresToday"} {
			if expr := exprOf(groups, alert); !strings.HasSuffix(expr, "- time() < "+want[i]) {
				t.Errorf("%s: %s is %s", values, alert, expr)
			}
		}
		if expr := exprOf(groups, "WatchproxyClientCertificateExpires"); !strings.HasSuffix(expr, "- time() < 86400") {
			t.Errorf("%s: the alert of the client's certificate is %s", values, expr)
		}
	}
}

// exprOf returns the expression of an alert in a PrometheusRule's groups.
func exprOf(groups []any, alert string) (expr string) {
	for _, g := range groups {
		all, _, _ := unstructured.NestedSlice(g.(map[string]any), "rules")
		for _, r := range all {
			if rule := r.(map[string]any); rule["alert"] == alert {
				expr, _ = rule["expr"].(string)
			}
		}
	}
	return expr
}
