package chart

import (
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The policy adds the sidecar of the example to pods with its label, and the apiserver accepts the pod.
func TestInjection(t *testing.T) {
	t.Parallel()
	w := worldOf(cluster.APIServerT(t, cluster.Options{Flags: []string{"--enable-admission-plugins=ServiceAccount"}}))
	ns := w.api.NamespaceT(t, "injection")
	text, err := os.ReadFile("testdata/policy.yaml")
	must(t, err)
	for _, o := range parseObjects(t, string(text)) {
		must(t, w.apply(t.Context(), o))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: applicationAccount}}
	_, err = w.admin.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	text, err = os.ReadFile("testdata/sidecar.yaml")
	must(t, err)
	whole := as[corev1.Pod](t, parseObjects(t, string(text)).one(t, "Pod"))
	plain := whole.DeepCopy()
	plain.Labels = map[string]string{"watchproxy.dev/inject": "sidecar"}
	plain.Spec.InitContainers, plain.Spec.Volumes, plain.Spec.Containers[0].Env, plain.Spec.Containers[0].VolumeMounts = nil, nil, nil, nil
	complete := func(pod *corev1.Pod) corev1.PodSpec {
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		made, err := w.admin.CoreV1().Pods(ns).Create(t.Context(), pod, dryRun)
		must(t, err)
		return made.Spec
	}
	want := complete(&whole)
	var got corev1.PodSpec
	cluster.Eventually(t, "the policy changes a pod", func() bool {
		got = complete(plain)
		return len(got.InitContainers) > 0
	})
	token := func(m corev1.VolumeMount) bool { return m.MountPath == cluster.AccountPath }
	if !slices.ContainsFunc(got.InitContainers[0].VolumeMounts, token) {
		t.Errorf("the sidecar has no token: %v", got.InitContainers[0].VolumeMounts)
	}
	for _, c := range []*corev1.Container{&got.InitContainers[0], &want.InitContainers[0]} { // the names of these mounts are random
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, token)
	}
	if !equality.Semantic.DeepEqual(got.InitContainers, want.InitContainers) || !equality.Semantic.DeepEqual(got.Containers, want.Containers) {
		t.Errorf("the pod is\n%+v\nwant\n%+v", got, want)
	}
	plain.Spec.HostNetwork = true
	if got := complete(plain); len(got.InitContainers) > 0 {
		t.Error("a pod in the network of its node gets a sidecar")
	}
	plain.Labels, plain.Spec.HostNetwork = nil, false
	if got := complete(plain); len(got.InitContainers) > 0 {
		t.Error("a pod without the label gets a sidecar")
	}
}
