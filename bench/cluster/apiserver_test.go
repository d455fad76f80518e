package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The apiserver accepts a pod without a service account. The pod survives an orderly stop and a
// crash, and the server's address stays the same.
func TestAPIServerRestarts(t *testing.T) {
	s := APIServerT(t, Options{})
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, end := range []struct {
		name string
		end  func() error
	}{
		{"stop", s.Stop},
		{"kill", func() error { s.Kill(); return nil }},
	} {
		before := s.URL
		if err := end.end(); err != nil {
			t.Fatal(err)
		}
		if _, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{}); err == nil {
			t.Fatalf("it answers after %s", end.name)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.URL != before {
			t.Errorf("after %s it is at %s instead of %s", end.name, s.URL, before)
		}
		got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.UID != created.UID || got.ResourceVersion != created.ResourceVersion {
			t.Errorf("after %s the pod is another one", end.name)
		}
	}

	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != "v1.36.3" {
		t.Errorf("it calls itself %s", version.GitVersion)
	}
}
