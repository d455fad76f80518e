package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// startLimit limits the informers that read their initial state at a time. Unlike real programs,
// they share one machine, and decoding the state takes far longer than getting it.
const startLimit = 4

// scope limits an informer to a namespace or a node. An empty field is no limit.
type scope struct{ namespace, node string }

// scopeOf returns the scope of informer i. Half of them watch everything, like controllers and
// exporters. A quarter watch a namespace, like operators. A quarter watch a node, like agents.
func scopeOf(i int) scope {
	switch i % 4 {
	case 2:
		return scope{namespace: workload.Namespaces[i/4%len(workload.Namespaces)]}
	case 3:
		return scope{node: workload.NodeName(i / 4)}
	}
	return scope{}
}

// crowd has the clients: shared informers of pods. Each has its own connection, like a separate
// program.
type crowd struct {
	config  *rest.Config
	scopes  []scope
	watched map[scope]int64 // number of informers by scope

	started []informers.SharedInformerFactory
	ctx     context.Context // of the informers
	cancel  context.CancelFunc

	delivered atomic.Int64 // calls of handlers for the writer's updates
	failures  atomic.Int64 // lists and watches that failed
	delivery  latency      // from sending an update to the call of a handler, including decoding by the informer
}

func newCrowd(config *rest.Config, n int) *crowd {
	c := &crowd{config: config, watched: map[scope]int64{}, started: make([]informers.SharedInformerFactory, n)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for i := range n {
		s := scopeOf(i)
		c.scopes = append(c.scopes, s)
		c.watched[s]++
	}
	return c
}

// interested returns the number of informers that must get an update of the pod.
func (c *crowd) interested(t target) int64 {
	return c.watched[scope{}] + c.watched[scope{namespace: t.namespace}] + c.watched[scope{node: t.node}]
}

// start returns when every informer has synced.
func (c *crowd) start(ctx context.Context, s *screen) error {
	return parallel(ctx, s, "starting informers", len(c.scopes), startLimit, c.startOne)
}

func (c *crowd) startOne(ctx context.Context, i int) error {
	config := rest.CopyConfig(c.config)
	config.UserAgent = fmt.Sprintf("demo-informer-%d", i)
	config.ContentType = "application/json"
	config.Dial = (&net.Dialer{}).DialContext // otherwise client-go shares connections between clients
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	where := c.scopes[i]
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(where.namespace),
		informers.WithTransform(keepMetadata),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if where.node != "" {
				o.FieldSelector = "spec.nodeName=" + where.node
			}
		}))
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: c.updated}); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandler(func(*cache.Reflector, error) { c.failures.Add(1) }); err != nil {
		return err
	}
	c.started[i] = factory
	factory.Start(c.ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("interrupted before the informers had synced")
	}
	return nil
}

// keepMetadata drops all but an object's metadata, as programs with large caches do, because this
// process has two hundred caches.
func keepMetadata(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil // a tombstone
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		Annotations: o.GetAnnotations(),
	}}, nil
}

// updated is the informers' handler. Updates by others keep the writer's stamp and do not count.
func (c *crowd) updated(before, after any) {
	now := time.Now()
	was := before.(metav1.Object).GetAnnotations()
	is := after.(metav1.Object).GetAnnotations()
	if sent, ok := sentAt(is); ok && was[stamp] != is[stamp] {
		c.delivered.Add(1)
		c.delivery.observe(now.Sub(sent))
	}
}

// stop returns when no informer is running any more.
func (c *crowd) stop() {
	c.cancel()
	for _, factory := range c.started {
		if factory != nil {
			factory.Shutdown()
		}
	}
}
