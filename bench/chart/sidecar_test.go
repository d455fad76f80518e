package chart

import (
	"slices"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// embedded renders the chart of an application that depends on this chart.
func embedded(t *testing.T, values map[string]any) objects {
	t.Helper()
	application, err := loader.Load("testdata/application")
	if err != nil {
		t.Fatal(err)
	}
	application.AddDependency(loadChart(t))
	values["enabled"] = true // the condition of the dependency
	r, err := template(application, map[string]any{"watchproxy": values})
	if err != nil {
		t.Fatal(err)
	}
	return parseObjects(t, r.Manifest)
}

// For every address of the sidecar, all mounts exist in its pod. The container is allowed in a
// restricted namespace, whatever the application's own settings are.
func TestSidecarPods(t *testing.T) {
	for _, name := range []string{"values-sidecar", "sidecarsilent", "sidecarmonitored"} {
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
				if err != nil {
					t.Fatal(err)
				}
				if got := c.Contexts[c.CurrentContext].Namespace; got != namespace {
					t.Errorf("the kubeconfig's namespace is %q", got)
				}
			} else if len(pod.Containers[0].Env) > 0 {
				t.Errorf("there is no kubeconfig, and the environment has %v", pod.Containers[0].Env)
			}
		})
	}
}
