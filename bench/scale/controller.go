package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	pods           = corev1.SchemeGroupVersion.WithResource("pods")
	nodes          = corev1.SchemeGroupVersion.WithResource("nodes")
	services       = corev1.SchemeGroupVersion.WithResource("services")
	namespaces     = corev1.SchemeGroupVersion.WithResource("namespaces")
	endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
)

// needs has the resources that kinds of controllers watch: controller managers with schedulers,
// policy engines, ingress controllers, operators.
var needs = [][]schema.GroupVersionResource{
	{pods, nodes, services, endpointSlices, namespaces},
	{nodes, namespaces},
	{services, endpointSlices},
	{namespaces, databases},
	{nodes, databases},
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
	factory := informers.NewSharedInformerFactory(client, 0)
	var synced []cache.InformerSynced
	for _, resource := range needs[i%len(needs)] {
		var generic informers.GenericInformer
		if resource == databases {
			generic = dynamicinformer.NewDynamicSharedInformerFactory(custom, 0).ForResource(resource)
		} else if generic, err = factory.ForResource(resource); err != nil {
			return err
		}
		informer := generic.Informer()
		_, err := informer.AddEventHandler(c.handler())
		if err := errors.Join(err, informer.SetTransform(onlyNames)); err != nil {
			return err
		}
		if resource == pods {
			c.mu.Lock()
			c.mu.pods = append(c.mu.pods, informer.GetStore())
			c.mu.Unlock()
		}
		synced = append(synced, informer.HasSynced)
		c.running.Go(func() { informer.RunWithContext(c.ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("a controller has not read %v: %w", needs[i%len(needs)], context.Cause(ctx))
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

// checkInformers waits until each cache of pods has exactly the apiserver's pods, each in its
// version. Kwok may still start some.
func (c *crowd) checkInformers(ctx context.Context) error {
	for end := time.Now().Add(recovery); ; cluster.Pause(ctx, 10*time.Second) {
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
	for n, store := range c.mu.pods {
		objects := store.List()
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
