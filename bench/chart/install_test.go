package chart

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// The apiserver accepts all objects of each combination of values. In a restricted namespace it
// also accepts the pods of their templates.
func TestObjectsAreAccepted(t *testing.T) {
	w := sharedWorld(t)
	for name, values := range combinations(t) {
		t.Run(name, func(t *testing.T) { w.accepts(t, render(t, values)) })
	}
}

func (w *world) accepts(t *testing.T, all objects) {
	t.Helper()
	for _, o := range all {
		if err := w.apply(t.Context(), o, metav1.DryRunAll); err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	for _, o := range all.of("Deployment", "DaemonSet") {
		template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
		if err != nil {
			t.Fatal(err)
		}
		template["apiVersion"], template["kind"] = "v1", "Pod"
		pod := &unstructured.Unstructured{Object: template}
		pod.SetName("of-" + o.GetName())
		pod.SetNamespace(namespace)
		if err := w.apply(t.Context(), pod, metav1.DryRunAll); err != nil {
			t.Errorf("pod of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// An application's chart embeds the sidecar, with the values from the chart's example.
func TestSidecar(t *testing.T) {
	w := sharedWorld(t)
	all := embedded(t, combinations(t)["values-sidecar"])
	for _, o := range all {
		if o.GetNamespace() == "" && o.GetKind() == "Deployment" {
			o.SetNamespace(namespace)
		}
	}
	w.accepts(t, all)

	pod := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template.Spec
	sidecar := pod.InitContainers[0]
	if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("the sidecar is no sidecar")
	}
	var kubeconfig string
	for _, o := range all.of("ConfigMap") {
		kubeconfig += as[corev1.ConfigMap](t, o).Data["kubeconfig"]
	}
	if c := configuration(t, all); !strings.Contains(kubeconfig, "server: http://"+c.Listen+"\n") {
		t.Errorf("the kubeconfig does not lead to %s:\n%s", c.Listen, kubeconfig)
	}
	for _, o := range all.of("ClusterRoleBinding", "RoleBinding") {
		if name, _, _ := unstructured.NestedString(o.Object, "roleRef", "name"); name == "system:auth-delegator" || strings.HasPrefix(name, "extension-") {
			t.Errorf("a sidecar on loopback does not need %s", name)
		}
	}
}

// The chart is installed, upgraded and uninstalled by Helm itself. A generated certificate is kept
// until its names change.
func TestHelmInstalls(t *testing.T) {
	w := sharedWorld(t)
	cache, ns := t.TempDir(), "installed"
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace, flags.CacheDir = &w.api.Kubeconfig, &ns, &cache
	cfg := action.NewConfiguration()
	if err := cfg.Init(flags, ns, "secret"); err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(cfg)
	install.ReleaseName, install.Namespace, install.CreateNamespace, install.WaitStrategy = releaseName, ns, true, kube.HookOnlyStrategy
	values := combinations(t)["monitored"]
	if _, err := install.RunWithContext(t.Context(), loadChart(t), values); err != nil {
		t.Fatal(err)
	}
	first := w.certificate(t, ns)
	if _, err := first.Verify(x509.VerifyOptions{DNSName: releaseName + "." + ns + ".svc", Roots: w.authority(t, ns)}); err != nil {
		t.Error(err)
	}

	upgrade := func(values map[string]any) *x509.Certificate {
		t.Helper()
		u := action.NewUpgrade(cfg)
		u.Namespace, u.WaitStrategy = ns, kube.HookOnlyStrategy
		if _, err := u.RunWithContext(t.Context(), releaseName, loadChart(t), values); err != nil {
			t.Fatal(err)
		}
		return w.certificate(t, ns)
	}
	values["replicas"] = 3
	if again := upgrade(values); !bytes.Equal(again.Raw, first.Raw) {
		t.Error("an upgrade makes another certificate")
	}
	values["tls"] = map[string]any{"dnsNames": []any{"watchproxy.example.com"}}
	if other := upgrade(values); other.VerifyHostname("watchproxy.example.com") != nil {
		t.Errorf("a new name is not in the certificate: %v", other.DNSNames)
	}

	uninstall := action.NewUninstall(cfg)
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	if _, err := uninstall.Run(releaseName); err != nil {
		t.Fatal(err)
	}
	w.hasNothingOf(t, ns)
}

func (w *world) secret(t *testing.T, ns string) map[string][]byte {
	t.Helper()
	s, err := w.admin.CoreV1().Secrets(ns).Get(t.Context(), releaseName+"-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Data
}

func (w *world) certificate(t *testing.T, ns string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(w.secret(t, ns)["tls.crt"])
	if block == nil {
		t.Fatal("tls.crt is no PEM")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) authority(t *testing.T, ns string) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(w.secret(t, ns)["ca.crt"]) {
		t.Fatal("ca.crt is no certificate")
	}
	return pool
}

// hasNothingOf fails if any object of the release is left. It looks for all kinds of objects that
// the chart can create.
func (w *world) hasNothingOf(t *testing.T, ns string) {
	t.Helper()
	kinds := map[string]*unstructured.Unstructured{}
	for _, values := range combinations(t) {
		for _, o := range render(t, values) {
			kinds[o.GetAPIVersion()+"/"+o.GetKind()] = o
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		gvk := kinds[kind].GroupVersionKind()
		mapping, err := w.mapping.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			t.Fatal(err)
		}
		list, err := w.dynamic.Resource(mapping.Resource).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + releaseName})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			if in := o.GetNamespace(); (in == ns || in == "" || in == metav1.NamespaceSystem) && strings.Contains(o.GetName()+in, ns) && o.GetDeletionTimestamp() == nil {
				t.Errorf("%s %s is left", o.GetKind(), o.GetName())
			}
		}
	}
}
