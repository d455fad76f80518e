package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// needs has the resources that kinds of controllers watch: controller managers, schedulers, ingress
// controllers, policy engines, operators.
var needs = [][]string{
	{"pods", "nodes", "services", "endpointslices", "namespaces"},
	{"pods", "nodes", "namespaces"},
	{"services", "endpointslices"},
	{"pods", "namespaces"},
	{"pods", "databases"},
}

// informer is client-go's, with a cache of names.
type informer struct {
	resource string
	store    cache.Store
}

// startController returns when the controller's informers have synced.
func (c *crowd) startController(ctx context.Context, i int) error {
	config, err := c.config(fmt.Sprintf("controller-%d", i), "system:masters")
	if err != nil {
		return err
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(protobuf(config))
	if err != nil {
		return err
	}
	began := time.Now()
	var started []cache.Controller
	for _, resource := range needs[i%len(needs)] {
		var lw cache.ListerWatcher
		var object runtime.Object
		switch core := client.CoreV1().RESTClient(); resource {
		case "pods":
			lw, object = selecting(core, resource, ""), &corev1.Pod{}
		case "nodes":
			lw, object = selecting(core, resource, ""), &corev1.Node{}
		case "services":
			lw, object = selecting(core, resource, ""), &corev1.Service{}
		case "namespaces":
			lw, object = selecting(core, resource, ""), &corev1.Namespace{}
		case "endpointslices":
			lw, object = selecting(client.DiscoveryV1().RESTClient(), resource, ""), &discoveryv1.EndpointSlice{}
		case "databases":
			lw, object = &cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
					return custom.Resource(databases).List(ctx, o)
				},
				WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
					return custom.Resource(databases).Watch(ctx, o)
				},
			}, &unstructured.Unstructured{}
		}
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: lw, ObjectType: object, Transform: onlyNames, Handler: c.handler(),
		})
		started = append(started, controller)
		c.addInformer(informer{resource, store})
		c.running.Go(func() { controller.RunWithContext(c.ctx) })
	}
	for n, controller := range started {
		for !controller.HasSynced() {
			if cluster.Pause(ctx, 10*time.Millisecond); ctx.Err() != nil {
				return fmt.Errorf("a controller has not read %s: %w", needs[i%len(needs)][n], context.Cause(ctx))
			}
		}
	}
	c.r.took("sync of a controller", time.Since(began))
	return nil
}

// handler measures events after the first state.
func (c *crowd) handler() cache.ResourceEventHandler {
	record := func(object any) {
		if o, ok := object.(metav1.Object); ok {
			c.r.event(o.GetResourceVersion())
		}
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initial bool) {
			if !initial {
				record(object)
			}
		},
		UpdateFunc: func(_, object any) { record(object) },
		DeleteFunc: record,
	}
}

func (c *crowd) addInformer(i informer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.informers = append(c.mu.informers, i)
}

// checkInformers waits until each cache of pods has exactly the apiserver's pods, each in its
// version. Kwok may still start some.
func (c *crowd) checkInformers(ctx context.Context) error {
	for end := time.Now().Add(recovery); ; cluster.Pause(ctx, renewal) {
		wrong, err := c.differing(ctx)
		if err != nil || wrong == "" {
			return err
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return errors.New(wrong)
		}
	}
}

// differing names a difference between a cache of pods and the apiserver.
func (c *crowd) differing(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := c.w.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	want := map[string]string{}
	for _, pod := range list.Items {
		want[pod.Namespace+"/"+pod.Name] = pod.ResourceVersion
	}
	for n, i := range c.mu.informers {
		if i.resource != "pods" {
			continue
		}
		objects := i.store.List()
		for _, object := range objects {
			o := object.(metav1.Object)
			if key := o.GetNamespace() + "/" + o.GetName(); want[key] != o.GetResourceVersion() {
				return fmt.Sprintf("informer %d has %s at %q instead of %q", n, key, o.GetResourceVersion(), want[key]), nil
			}
		}
		if len(objects) != len(want) {
			return fmt.Sprintf("informer %d has %d pods instead of %d", n, len(objects), len(want)), nil
		}
	}
	return "", nil
}
