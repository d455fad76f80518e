package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestRollOnConfigChange(t *testing.T) {
	annotations := func(values string) map[string]string {
		return as[appsv1.Deployment](t, render(t, parseValues(t, values)).one(t, "Deployment")).Spec.Template.Annotations
	}
	if got := annotations(`{rollOnConfigChange: false}`); len(got) > 0 {
		t.Errorf("pods that are not rolled have %v", got)
	}
	if got := annotations(`{rollOnConfigChange: false, podAnnotations: {a: b}}`); len(got) != 1 || got["a"] != "b" {
		t.Errorf("annotations %v", got)
	}
	if got := annotations(`{podAnnotations: {a: b}}`); len(got) != 2 {
		t.Errorf("annotations %v", got)
	}
}

// The network policy allows egress to all servers in the configuration.
func TestEgress(t *testing.T) {
	const (
		apiserver = "TCP 443, TCP 6443"
		dns       = "; UDP 53, TCP 53"
	)
	for values, want := range map[string]string{
		``: apiserver,
		`config: {upstream: {servers: ["https://10.0.0.1", "https://10.0.0.2:6443"]}}`:                  apiserver,
		`config: {upstream: {servers: ["https://[::1]:7443"]}}`:                                         apiserver + ", TCP 7443",
		`config: {upstream: {servers: ["http://10.0.0.1"]}}`:                                            apiserver + ", TCP 80",
		`config: {upstream: {servers: ["https://apiserver.example.com:7443", "https://10.0.0.1:443"]}}`: apiserver + ", TCP 7443" + dns,
		`config: {upstream: {kubeconfig: /etc/kubeconfig}}`:                                             apiserver + dns,
	} {
		policy := `{tls: {mode: certManager}, networkPolicy: {enabled: true, extraEgress: [{ports: [{port: 9, protocol: TCP}]}]}`
		all := render(t, parseValues(t, policy+", "+strings.Trim(values, ",")+"}"))
		var rules []string
		for _, r := range as[networkingv1.NetworkPolicy](t, all.one(t, "NetworkPolicy")).Spec.Egress {
			var ports []string
			for _, p := range r.Ports {
				ports = append(ports, fmt.Sprintf("%s %s", *p.Protocol, p.Port))
			}
			rules = append(rules, strings.Join(ports, ", "))
		}
		if got := strings.Join(rules, "; "); got != want+"; TCP 9" {
			t.Errorf("%s: egress %s instead of %s", values, got, want)
		}
	}
}

func TestCertificateNames(t *testing.T) {
	names := func(values string) []string {
		for _, o := range render(t, parseValues(t, values)).of("Certificate") {
			if o.GetName() == releaseName {
				names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "dnsNames")
				return names
			}
		}
		return nil
	}
	if got := names(`{tls: {mode: certManager, dnsNames: [a.example.com]}}`); len(got) != 5 {
		t.Errorf("names %v", got)
	}
	if got := names(`{tls: {mode: certManager, serviceNames: false, dnsNames: [a.example.com]}}`); !slices.Equal(got, []string{"a.example.com"}) {
		t.Errorf("a public issuer is asked for %v", got)
	}
}

// Labels that are set in two places are merged. It is no error if a value is not set.
func TestMerges(t *testing.T) {
	const labels = `labels: {team: a, app.kubernetes.io/version: "9"}`
	for _, values := range []string{
		`{commonLabels: {team: b, app.kubernetes.io/managed-by: c}, monitoring: {podMonitor: {enabled: true, ` + labels + `},
			prometheusRule: {enabled: true, ` + labels + `}, dashboard: {enabled: true, ` + labels + `}}}`,
		`{commonLabels: {team: b, app.kubernetes.io/component: c}, monitoring: {serviceMonitor: {enabled: true, ` + labels + `}}}`,
	} {
		all := render(t, parseValues(t, values)) // a duplicate key fails the test
		for _, o := range all.of("PodMonitor", "ServiceMonitor", "PrometheusRule") {
			if got := o.GetLabels(); got["team"] != "a" || got["app.kubernetes.io/version"] != "9" || got["app.kubernetes.io/instance"] != releaseName {
				t.Errorf("%s: labels %v", o.GetKind(), got)
			}
		}
		for _, o := range all.of("Service") {
			if got := o.GetLabels()["app.kubernetes.io/component"]; strings.HasSuffix(o.GetName(), "-admin") && got != "admin" {
				t.Errorf("the ServiceMonitor does not find %s, a %s", o.GetName(), got)
			}
		}
	}
	all := render(t, parseValues(t, `{probes: {startup: null, liveness: null, readiness: null}}`))
	if c := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template.Spec.Containers[0]; c.StartupProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("startup probe %v", c.StartupProbe)
	}
}

// The image in a release has the name that the chart of that version uses.
func TestImageOfARelease(t *testing.T) {
	version := loadChart(t).AppVersion()
	cmd := exec.CommandContext(t.Context(), "make", "--dry-run", "--no-print-directory", "image", "VERSION=v"+version)
	cmd.Dir = cluster.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	image := as[appsv1.Deployment](t, render(t, nil).one(t, "Deployment")).Spec.Template.Spec.Containers[0].Image
	if !strings.Contains(string(out), `-name "`+image+`"`) {
		t.Errorf("make image does not make %s:\n%s", image, out)
	}
}

// The install commands in the documents render. If there is a proxy on each node, clients use the
// proxy on their own node.
func TestDocumentedInstallations(t *testing.T) {
	installs := regexp.MustCompile(`(?m)^    helm install watchproxy charts/watchproxy (.*)$`)
	sets := regexp.MustCompile(`--set '?([^ ']+)`)
	local := false
	for _, document := range []string{"README.md", "cmd/watchproxy/README.md", "charts/watchproxy/README.md"} {
		text, err := os.ReadFile(filepath.Join(cluster.Root(), document))
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range installs.FindAllStringSubmatch(string(text), -1) {
			values := map[string]any{}
			for _, set := range sets.FindAllStringSubmatch(command[1], -1) {
				if err := strvals.ParseInto(set[1], values); err != nil {
					t.Fatalf("%s: %s: %v", document, command[0], err)
				}
			}
			all := render(t, values)
			if len(all.of("DaemonSet")) == 0 {
				continue
			}
			local = true
			if policy := as[corev1.Service](t, all.one(t, "Service")).Spec.InternalTrafficPolicy; *policy != corev1.ServiceInternalTrafficPolicyLocal {
				t.Errorf("%s: the Service of a DaemonSet sends clients to any node: %s", document, command[0])
			}
		}
	}
	if !local {
		t.Error("no document installs a DaemonSet")
	}
}
