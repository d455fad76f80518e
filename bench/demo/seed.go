package main

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// seedLimit is the number of pods that are created at a time: enough to keep a small machine's etcd
// busy.
const seedLimit = 16

// seed creates n pods and their namespaces. It returns the pods as targets.
func seed(ctx context.Context, client kubernetes.Interface, n int, s *screen) ([]target, error) {
	if err := workload.CreateNamespaces(ctx, client); err != nil {
		return nil, err
	}
	targets := make([]target, n)
	err := parallel(ctx, s, "seeding pods", n, seedLimit, func(ctx context.Context, i int) error {
		pod := workload.NewPod(i)
		targets[i] = target{pod.Namespace, pod.Name, pod.Spec.NodeName}
		return workload.CreatePod(ctx, client, pod)
	})
	return targets, err
}
