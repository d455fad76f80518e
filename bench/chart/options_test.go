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

	"helm.sh/helm/v4/pkg/chart/common"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
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
	const labels = `additionalLabels: {team: a, app.kubernetes.io/version: "9"}`
	for _, values := range []string{
		`{commonLabels: {team: b, app.kubernetes.io/managed-by: c}, monitoring: {podMonitor: {enabled: true, ` + labels + `},
			prometheusRule: {enabled: true, ` + labels + `}, dashboard: {enabled: true, labels: {team: a}}}}`,
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
	all := render(t, parseValues(t, `{startupProbe: null, livenessProbe: null, readinessProbe: null}`))
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
	must(t, err)
	if listed := loadChart(t).Metadata.Annotations["artifacthub.io/images"]; !strings.Contains(listed, ":"+version+"\n") {
		t.Errorf("Artifact Hub is told of other images than %s: %s", version, listed)
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
		must(t, err)
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

// Clients of several replicas move between them, unless the values say otherwise.
func TestGoawayChance(t *testing.T) {
	const several = 0.01
	for values, want := range map[string]float64{
		`{}`:                several,
		`{replicaCount: 1}`: 0,
		`{replicaCount: 1, autoscaling: {enabled: true}}`: several,
		`{kind: DaemonSet}`:               0,
		`{config: {goawayChance: 0}}`:     0,
		`{config: {goawayChance: 0.001}}`: 0.001,
	} {
		if got := configuration(t, render(t, parseValues(t, values))).GoawayChance; got != want {
			t.Errorf("%s: %v instead of %v", values, got, want)
		}
	}
}

// A constraint without a labelSelector counts the pods of its ReplicaSet. Others stay as they are.
func TestTopologySpreadConstraints(t *testing.T) {
	constraints := as[appsv1.Deployment](t, render(t, combinations(t)["single"]).one(t, "Deployment")).Spec.Template.Spec.TopologySpreadConstraints
	if len(constraints) != 2 {
		t.Fatalf("constraints %v", constraints)
	}
	if c := constraints[0]; c.MaxSkew != 2 || c.WhenUnsatisfiable != corev1.DoNotSchedule || c.LabelSelector.MatchLabels["app.kubernetes.io/name"] == "" || len(c.MatchLabelKeys) != 1 {
		t.Errorf("constraint %v", c)
	}
	if c := constraints[1]; c.MaxSkew != 1 || len(c.LabelSelector.MatchLabels) != 1 || len(c.MatchLabelKeys) > 0 {
		t.Errorf("constraint %v", c)
	}
}

// OpenShift refuses pods that choose their user or groups. The chart sees where it is.
func TestOpenShift(t *testing.T) {
	for values, want := range map[string]bool{
		`{}`: true,
		`{global: {compatibility: {openshift: {adaptSecurityContext: disabled}}}}`: false,
		`{global: {compatibility: {openshift: {adaptSecurityContext: auto}}}}`:     true,
	} {
		install := newTemplate()
		install.APIVersions = common.VersionSet{"security.openshift.io/v1"}
		r, err := install.Run(loadChart(t), parseValues(t, values))
		must(t, err)
		template := as[appsv1.Deployment](t, parseObjects(t, r.(*releasev1.Release).Manifest).one(t, "Deployment")).Spec.Template.Spec
		pod := template.SecurityContext
		if adapted := pod.RunAsUser == nil && pod.RunAsGroup == nil && pod.FSGroup == nil; adapted != want {
			t.Errorf("%s: the pod's security context is %v", values, pod)
		}
		if !*pod.RunAsNonRoot || pod.SeccompProfile == nil {
			t.Errorf("%s: other fields of %v are gone", values, pod)
		}
	}
	if pod := as[appsv1.Deployment](t, render(t, nil).one(t, "Deployment")).Spec.Template.Spec.SecurityContext; pod.RunAsUser == nil {
		t.Error("elsewhere the pod has no user")
	}
}

// In another namespace, monitors of two releases have different names, and the alerts ask for the
// job of the monitor.
func TestMonitorsInAnotherNamespace(t *testing.T) {
	all := render(t, parseValues(t, `{monitoring: {podMonitor: {enabled: true, namespace: observability}, prometheusRule: {enabled: true, namespace: observability}}}`))
	const name = namespace + "-" + releaseName
	for _, kind := range []string{"PodMonitor", "PrometheusRule"} {
		if o := all.one(t, kind); o.GetName() != name || o.GetNamespace() != "observability" {
			t.Errorf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
		}
	}
	if in, _, _ := unstructured.NestedStringSlice(all.one(t, "PodMonitor").Object, "spec", "namespaceSelector", "matchNames"); !slices.Equal(in, []string{namespace}) {
		t.Errorf("it scrapes the namespaces %v", in)
	}
	text, err := all.one(t, "PrometheusRule").MarshalJSON()
	must(t, err)
	if !strings.Contains(string(text), `job=\"observability/`+name+`\"`) {
		t.Errorf("the alerts ask for another job: %s", text)
	}
}

// The Services of releases in two namespaces may have the same name, which is the job of a
// ServiceMonitor. So the alerts ask for the namespace as well.
func TestAlertsOfOneNamespace(t *testing.T) {
	text, err := render(t, combinations(t)["servicemonitor"]).one(t, "PrometheusRule").MarshalJSON()
	must(t, err)
	const job = `job=\"` + releaseName + `-admin\"`
	if all, of := strings.Count(string(text), `job=\"`), strings.Count(string(text), job+`,namespace=\"`+namespace+`\"`); all == 0 || of != all {
		t.Errorf("%d of %d selectors name the namespace", of, all)
	}
}

// A headless Service leads to the pods. So its port is theirs, and helm test and the notes use it.
func TestHeadlessService(t *testing.T) {
	r, err := template(loadChart(t), parseValues(t, `{service: {clusterIP: None}, config: {listen: ":8443"}}`))
	must(t, err)
	if port := as[corev1.Service](t, parseObjects(t, r.Manifest).one(t, "Service")).Spec.Ports[0]; port.Port != 8443 {
		t.Errorf("the Service has port %d", port.Port)
	}
	const address = "https://" + releaseName + "." + namespace + ".svc:8443"
	if test := r.Hooks[0].Manifest; !strings.Contains(test, "--as-client="+address+"/") {
		t.Errorf("helm test does not connect to %s:\n%s", address, test)
	}
	if notes := r.Info.Notes; !strings.Contains(notes, address+",") || !strings.Contains(notes, " 8443:8443 8002:8002 &") {
		t.Errorf("the notes do not lead to %s:\n%s", address, notes)
	}
}

// The pod of helm test gets no clients, and the network policy lets it in.
func TestPodOfHelmTest(t *testing.T) {
	const values = `{networkPolicy: {enabled: true, clients: [{namespaceSelector: {}}]}}`
	r, err := template(loadChart(t), parseValues(t, values))
	must(t, err)
	var hooks objects
	for _, h := range r.Hooks {
		hooks = append(hooks, parseObjects(t, h.Manifest)...)
	}
	pod := as[corev1.Pod](t, hooks.one(t, "Pod"))
	if ca := pod.Spec.Volumes[0].ConfigMap; ca == nil || ca.Optional != nil || len(ca.Items) != 1 {
		t.Errorf("the test may start before the proxies have published their CA: %v", ca)
	}
	all := parseObjects(t, r.Manifest)
	selects := func(selector, labels map[string]string) bool {
		for name, value := range selector {
			if labels[name] != value {
				return false
			}
		}
		return true
	}
	if selects(as[corev1.Service](t, all.one(t, "Service")).Spec.Selector, pod.Labels) {
		t.Error("the Service sends clients to the test")
	}
	if peers := as[networkingv1.NetworkPolicy](t, all.one(t, "NetworkPolicy")).Spec.Ingress[0].From; !slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		return p.PodSelector != nil && selects(p.PodSelector.MatchLabels, pod.Labels)
	}) {
		t.Errorf("the network policy keeps the test out: %v", peers)
	}
	for _, none := range []string{`{tests: {enabled: false}}`, `{service: {enabled: false}}`} {
		if r, err := template(loadChart(t), parseValues(t, none)); err != nil || len(r.Hooks) > 0 {
			t.Errorf("%s: %d hooks, %v", none, len(r.Hooks), err)
		}
	}
}
