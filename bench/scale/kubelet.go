package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// renewal returns the time between two renewals of a node's lease: a kubelet's 10 s, or more if that
// gave more than 20 writes a second.
func (s size) renewal() time.Duration {
	return max(10*time.Second, time.Duration(s.nodes)*time.Second/20)
}

// startKubelet returns when the kubelet knows its pods, its node and the services. It begins from a
// resourceVersion as if it knew them, or with their state if that is empty.
func (c *crowd) startKubelet(ctx context.Context, i int, from string) error {
	node := nodeName(i)
	config, err := c.config("system:node:"+node, "system:nodes")
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(protobuf(config))
	if err != nil {
		return err
	}
	core, err := coreclient.NewForConfigAndClient(config, client)
	if err != nil {
		return err
	}
	coordination, err := coordinationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(c.ctx)
	c.kubelets[i] = stop
	var followers []*follower
	for _, f := range []struct {
		kind, resource, selector string
		object                   runtime.Object
	}{
		{"a node's pods", "pods", "spec.nodeName=" + node, &corev1.Pod{}},
		{"a node", "nodes", "metadata.name=" + node, &corev1.Node{}},
		{"all services", "services", "", &corev1.Service{}},
	} {
		lw := selecting(core.RESTClient(), f.resource, f.selector)
		followers = append(followers, c.follow(running, f.kind, f.object, lw, from))
	}
	c.running.Go(func() { renew(running, coordination.Leases(leases), node, c.w.renewal()) })
	for _, f := range followers {
		select {
		case <-f.synced:
		case <-ctx.Done():
			return fmt.Errorf("%s has not read %s: %w", node, f.kind, context.Cause(ctx))
		}
	}
	return nil
}

// renew renews a lease until ctx ends. Like a kubelet, it gets the lease again only after an error.
func renew(ctx context.Context, leases coordinationclient.LeaseInterface, node string, every time.Duration) {
	var lease *coordinationv1.Lease
	for cluster.Pause(ctx, rand.N(every)); ctx.Err() == nil; cluster.Pause(ctx, every) {
		var err error
		if lease == nil {
			if lease, err = leases.Get(ctx, node, metav1.GetOptions{}); err != nil {
				lease = nil
				continue
			}
		}
		lease.Spec.RenewTime = new(metav1.NowMicro())
		if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			lease = nil
		}
	}
}
