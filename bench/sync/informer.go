package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// syncer is a client that syncs with a collection and follows it until ctx ends. The end of ctx is
// not an error. Once the client has synced, it calls synced with its number of objects.
type syncer func(ctx context.Context, to *rest.Config, c *collection, synced func(objects int)) error

// inform is a syncer: a client-go shared informer with default settings.
func inform(ctx context.Context, to *rest.Config, c *collection, synced func(objects int)) error {
	way, err := connect(to)
	if err != nil {
		return err
	}
	defer way.close()
	client, err := kubernetes.NewForConfigAndClient(way.config, way.client)
	if err != nil {
		return fmt.Errorf("client of %s: %w", to.Host, err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	generic, err := factory.ForResource(c.gvr)
	if err != nil {
		return fmt.Errorf("informer of %s: %w", c.gvr.Resource, err)
	}
	informer := generic.Informer()
	var failure atomic.Pointer[error] // the last
	if err := informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failure.Store(&err) }); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	select {
	case <-informer.HasSyncedChecker().Done():
		synced(len(informer.GetStore().ListKeys()))
		<-ctx.Done()
		return nil
	case <-ctx.Done():
		err := context.Cause(ctx)
		if last := failure.Load(); last != nil {
			err = fmt.Errorf("%w, after: %w", err, *last)
		}
		return fmt.Errorf("informer of %s at %s did not sync: %w", c.gvr.Resource, to.Host, err)
	}
}
