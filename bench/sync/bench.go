package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// bench is an apiserver with all collections in it.
type bench struct {
	options
	api   *cluster.APIServer
	admin *kubernetes.Clientset
	log   io.Writer
}

// measure cleans up even after an error. The report then has the measurements up to the error.
func measure(ctx context.Context, o options, log io.Writer) (r report, err error) {
	b := &bench{options: o, log: log}
	b.say("starting kube-apiserver and etcd")
	if b.api, err = cluster.StartAPIServer(ctx, cluster.Options{}); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.api.Close()) }()
	connection, err := connect(b.api.RESTConfig())
	if err != nil {
		return r, err
	}
	defer connection.close()
	if b.admin, err = kubernetes.NewForConfigAndClient(connection.config, connection.client); err != nil {
		return r, err
	}
	collections := o.collections()
	if err := b.seed(ctx, collections); err != nil {
		return r, err
	}
	err = b.duringWrites(ctx, func(ctx context.Context) error {
		r, err = b.measure(ctx, collections)
		return err
	})
	return r, err
}

func (b *bench) measure(ctx context.Context, collections []collection) (r report, err error) {
	solos, err := b.solos(ctx, collections)
	r = report{Sync: solos, Writes: b.writes}
	if err != nil {
		return r, err
	}
	if r.IdleCPU, err = b.idle(ctx); err != nil {
		return r, err
	}
	if r.Tiers, err = b.tiers(ctx); err != nil {
		return r, err
	}
	r.Herd, err = b.stampedes(ctx, collections)
	return r, err
}

// seed fills each collection to its size. It counts the objects that kube-apiserver has created by
// itself.
func (b *bench) seed(ctx context.Context, collections []collection) error {
	const limit = 16 // requests in flight: enough to keep a small machine's etcd busy
	if err := workload.CreateNamespaces(ctx, b.admin); err != nil {
		return err
	}
	for _, c := range collections {
		there, err := c.count(ctx, b.api.RESTConfig())
		if err != nil {
			return err
		}
		if there == c.objects {
			continue
		}
		b.say("making %d %s", c.objects-there, c.gvr.Resource)
		err = workload.Parallel(ctx, c.objects-there, limit, func(ctx context.Context, i int) error { return c.create(ctx, b.admin, i) })
		if err != nil {
			return err
		}
	}
	return b.createLeases(ctx)
}

func (b *bench) startProxy(ctx context.Context) (*cluster.Proxy, error) {
	return cluster.StartProxy(ctx, cluster.ProxyOptions{Kubeconfig: b.api.Kubeconfig, Binary: b.watchproxy})
}

// idle returns the apiserver's load without readers, in seconds of processor time per second. It
// includes the writes to other resources.
func (b *bench) idle(ctx context.Context) (float64, error) {
	const long = 2 * time.Second
	before, err := b.api.CPU()
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, long); err != nil {
		return 0, err
	}
	after, err := b.api.CPU()
	return (after - before).Seconds() / long.Seconds(), err
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.log, format+"\n", args...) }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
