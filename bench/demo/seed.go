package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// seedLimit is how many pods are being made at a time: enough to keep a small machine's etcd busy.
const seedLimit = 16

// seed makes n pods and the namespaces that they live in. It returns where to find them.
func seed(ctx context.Context, client kubernetes.Interface, n int, s *screen) ([]target, error) {
	for _, name := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("cannot create namespace %s: %w", name, err)
		}
	}
	targets := make([]target, n)
	err := parallel(ctx, s, "seeding pods", n, seedLimit, func(ctx context.Context, i int) error {
		pod := newPod(i)
		targets[i] = target{pod.Namespace, pod.Name, pod.Spec.NodeName}
		if err := create(ctx, client, pod); err != nil {
			return fmt.Errorf("cannot create pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		return nil
	})
	return targets, err
}

// create writes a pod in two steps, because the server lets nobody create one that already runs. The managers' names are
// those that real pods show.
func create(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{FieldManager: "kube-controller-manager"})
	if err != nil {
		return err
	}
	created.Status = pod.Status
	_, err = pods.UpdateStatus(ctx, created, metav1.UpdateOptions{FieldManager: "kubelet"})
	return err
}
