package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// collection is all objects of a resource, which informers sync. Each collection has a different
// resource.
type collection struct {
	name    string
	gvr     schema.GroupVersionResource
	objects int
	updates int // per second, while it is measured
	create  func(ctx context.Context, client kubernetes.Interface, i int) error
}

// collections returns an empty collection, a small and a large quiet one, and a busy one.
func (o *options) collections() []collection {
	return []collection{
		{
			name: "empty",
			gvr:  schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"},
		},
		{
			name: fmt.Sprintf("%d quiet", o.small),
			gvr:  corev1.SchemeGroupVersion.WithResource("serviceaccounts"), objects: o.small, create: createServiceAccount,
		},
		{
			name: fmt.Sprintf("%d quiet", o.large),
			gvr:  corev1.SchemeGroupVersion.WithResource("configmaps"), objects: o.large, create: createConfigMap,
		},
		{
			name: fmt.Sprintf("%d busy", o.busy), updates: o.updates,
			gvr: corev1.SchemeGroupVersion.WithResource("pods"), objects: o.busy, create: createPod,
		},
	}
}

// count asks the apiserver for the number of objects.
func (c *collection) count(ctx context.Context, config *rest.Config) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	err = follow(ctx, config, c, func(objects int) {
		n = objects
		cancel()
	})
	return n, err
}

func createServiceAccount(ctx context.Context, client kubernetes.Interface, i int) error {
	account := &corev1.ServiceAccount{ObjectMeta: newMeta("app", i)}
	_, err := client.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("cannot create a service account: %w", err)
	}
	return nil
}

// createConfigMap creates a config map of a kilobyte of JSON, including the fields that the server
// adds.
func createConfigMap(ctx context.Context, client kubernetes.Interface, i int) error {
	config := &corev1.ConfigMap{
		ObjectMeta: newMeta("settings", i),
		Data: map[string]string{
			"log.level":     "info",
			"database.host": fmt.Sprintf("postgres-%d.internal", i),
			"routes.conf":   strings.Repeat(fmt.Sprintf("route /api/v1/%d backend:8080\n", i), 12),
		},
	}
	_, err := client.CoreV1().ConfigMaps(config.Namespace).Create(ctx, config, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("cannot create a configmap: %w", err)
	}
	return nil
}

func createPod(ctx context.Context, client kubernetes.Interface, i int) error {
	return workload.CreatePod(ctx, client, workload.NewPod(i))
}

func newMeta(name string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: workload.Namespaces[i%len(workload.Namespaces)],
		Name:      fmt.Sprintf("%s-%05d", name, i),
		Labels:    map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": strconv.Itoa(i)},
	}
}

// updatePod changes a label of a pod directly at the apiserver, as controllers do.
func (b *bench) updatePod(ctx context.Context, i int) error {
	pod := workload.NewPod(rand.IntN(b.busy))
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"rollout":"r%d"}}}`, i)
	_, err := b.admin.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cannot update pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
