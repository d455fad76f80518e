package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

	written atomic.Int64 // updates
	due     atomic.Int64 // calls of handlers that these updates must cause

	mu struct {
		sync.Mutex
		delivered int64
		// times are those of the last deliveries, in ms: from sending an update to the call of a
		// handler, including decoding by the informer.
		times []float64
	}
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

// start returns when every informer has synced.
func (c *crowd) start(ctx context.Context) error {
	const tell = 50
	var synced atomic.Int64
	return workload.Parallel(ctx, len(c.scopes), startLimit, func(ctx context.Context, i int) error {
		err := c.startOne(ctx, i)
		if n := synced.Add(1); err == nil && n%tell == 0 {
			say("%d of %d have synced", n, len(c.scopes))
		}
		return err
	})
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
	was, is := before.(metav1.Object).GetAnnotations()[stamp], after.(metav1.Object).GetAnnotations()[stamp]
	ns, err := strconv.ParseInt(is, 10, 64)
	if err != nil || was == is {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.delivered++
	c.mu.times = append(c.mu.times, now.Sub(time.Unix(0, ns)).Seconds()*1e3)
}

// take returns the number of deliveries, and the times of those since the last call.
func (c *crowd) take() (delivered int64, times []float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	times, c.mu.times = c.mu.times, nil
	return c.mu.delivered, times
}

// stamp is the annotation with the time of an update, in nanoseconds since 1970.
const stamp = "demo.watchproxy/sent-at"

// writeLimit limits the updates in flight. At this limit updates are skipped, so that the server
// determines the rate.
const writeLimit = 8

// during updates pods directly at the apiserver, at the given rate per second, while do runs.
func (c *crowd) during(ctx context.Context, api kubernetes.Interface, pods []*corev1.Pod, rate int, do func(context.Context) error) error {
	return workload.During(ctx, rate, writeLimit, func(ctx context.Context, i int) error {
		pod := pods[rand.IntN(len(pods))]
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"},"labels":{"rollout":"r%d"}}}`, stamp, time.Now().UnixNano(), i)
		_, err := api.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil // deleted by a user of the demo
		}
		if err != nil {
			return fmt.Errorf("cannot update pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		c.written.Add(1)
		c.due.Add(c.watched[scope{}] + c.watched[scope{namespace: pod.Namespace}] + c.watched[scope{node: pod.Spec.NodeName}])
		return nil
	}, do)
}

// settle waits, without further writes, until every informer has seen all of its updates.
func (c *crowd) settle(ctx context.Context) error {
	const limit, pause = 10 * time.Second, 10 * time.Millisecond
	for began := time.Now(); ; time.Sleep(pause) {
		delivered, _ := c.take()
		switch due := c.due.Load(); {
		case delivered == due:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Since(began) > limit:
			return fmt.Errorf("%d handlers called instead of %d: events were lost or repeated", delivered, due)
		}
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
