package chart

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// embedded renders the chart of an application that depends on this chart.
func embedded(t *testing.T, values map[string]any) objects {
	t.Helper()
	application, err := loader.Load("testdata/application")
	must(t, err)
	application.AddDependency(loadChart(t))
	values["enabled"] = true // the condition of the dependency
	r, err := template(application, map[string]any{"watchproxy": values})
	must(t, err)
	return parseObjects(t, r.Manifest)
}

// For every address of the sidecar, all mounts exist in its pod. The container is allowed in a
// restricted namespace, whatever the application's own settings are.
func TestSidecarPods(t *testing.T) {
	for _, name := range []string{"values-sidecar", "sidecarplain", "sidecarsilent", "sidecarmonitored"} {
		t.Run(name, func(t *testing.T) {
			all := embedded(t, combinations(t)[name])
			pod := as[appsv1.Deployment](t, all.one(t, "Deployment")).Spec.Template.Spec
			configMap := as[corev1.ConfigMap](t, all.one(t, "ConfigMap"))
			for _, v := range pod.Volumes {
				if v.ConfigMap == nil {
					continue
				}
				if v.ConfigMap.Name != configMap.Name {
					t.Errorf("volume %s: there is no ConfigMap %s", v.Name, v.ConfigMap.Name)
				}
				for _, item := range v.ConfigMap.Items {
					if _, ok := configMap.Data[item.Key]; !ok {
						t.Errorf("volume %s: the ConfigMap has no %s", v.Name, item.Key)
					}
				}
			}
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				for _, m := range c.VolumeMounts {
					if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
						t.Errorf("container %s mounts %s, which is no volume", c.Name, m.Name)
					}
				}
			}
			security := pod.InitContainers[0].SecurityContext
			if security.RunAsNonRoot == nil || !*security.RunAsNonRoot || security.SeccompProfile == nil {
				t.Errorf("the sidecar's security context is %v", security)
			}
			if text, ok := configMap.Data["kubeconfig"]; ok {
				c, err := clientcmd.Load([]byte(text))
				must(t, err)
				if got := c.Contexts[c.CurrentContext].Namespace; got != namespace {
					t.Errorf("the kubeconfig's namespace is %q", got)
				}
			} else if env := pod.Containers[0].Env; (len(env) > 0 && env[0].Name == "KUBERNETES_SERVICE_HOST") != (name == "values-sidecar") {
				t.Errorf("there is no kubeconfig, and the environment has %v", env)
			}
		})
	}
}

// The policy adds the sidecar to pods with its label, and the apiserver accepts the pod.
func TestInjection(t *testing.T) {
	t.Parallel()
	w := worldOf(cluster.APIServerT(t, cluster.Options{Flags: []string{"--enable-admission-plugins=ServiceAccount"}}))
	namespace := w.api.NamespaceT(t, "injection")
	text, err := os.ReadFile("testdata/policy.yaml")
	must(t, err)
	for _, o := range parseObjects(t, string(text)) {
		must(t, w.apply(t.Context(), o))
	}
	_, err = w.admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: applicationAccount}}, metav1.CreateOptions{})
	must(t, err)
	text, err = os.ReadFile("testdata/sidecar.yaml")
	must(t, err)
	whole := as[corev1.Pod](t, parseObjects(t, string(text)).one(t, "Pod"))
	plain := whole.DeepCopy()
	plain.Labels = map[string]string{"watchproxy.dev/inject": "sidecar"}
	plain.Spec.InitContainers, plain.Spec.Volumes, plain.Spec.Containers[0].Env, plain.Spec.Containers[0].VolumeMounts = nil, nil, nil, nil
	pods := w.admin.CoreV1().Pods(namespace)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	// want is the example's pod, as the apiserver completes it.
	want, err := pods.Create(t.Context(), &whole, dryRun)
	must(t, err)
	var got *corev1.Pod
	cluster.Eventually(t, "the policy changes a pod", func() bool {
		got, err = pods.Create(t.Context(), plain, dryRun)
		must(t, err)
		return len(got.Spec.InitContainers) > 0
	})
	sidecar, app := &got.Spec.InitContainers[0], &got.Spec.Containers[0]
	if !slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == cluster.AccountPath }) {
		t.Errorf("the sidecar has no token: %v", sidecar.VolumeMounts)
	}
	for _, c := range []*corev1.Container{sidecar, &want.Spec.InitContainers[0]} { // the names of these mounts are random
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == cluster.AccountPath })
	}
	if !equality.Semantic.DeepEqual(*sidecar, want.Spec.InitContainers[0]) {
		t.Errorf("the sidecar is\n%+v\nwant\n%+v", *sidecar, want.Spec.InitContainers[0])
	}
	if want := want.Spec.Containers[0]; !reflect.DeepEqual(app.Env, want.Env) || !reflect.DeepEqual(app.VolumeMounts, want.VolumeMounts) {
		t.Errorf("the application has %v and %v, want %v and %v", app.Env, app.VolumeMounts, want.Env, want.VolumeMounts)
	}
	for _, v := range want.Spec.Volumes {
		if strings.HasPrefix(v.Name, "watchproxy") && !slices.ContainsFunc(got.Spec.Volumes, func(o corev1.Volume) bool { return equality.Semantic.DeepEqual(v, o) }) {
			t.Errorf("the volume %s is missing or different", v.Name)
		}
	}
	plain.Spec.HostNetwork = true
	if got, err = pods.Create(t.Context(), plain, dryRun); err != nil || len(got.Spec.InitContainers) > 0 {
		t.Errorf("a pod in the network of its node: %v, %v", got.Spec.InitContainers, err)
	}
	plain.Labels, plain.Spec.HostNetwork = nil, false
	if got, err = pods.Create(t.Context(), plain, dryRun); err != nil || len(got.Spec.InitContainers) > 0 {
		t.Errorf("a pod without the label: %v, %v", got.Spec.InitContainers, err)
	}
}
