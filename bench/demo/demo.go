package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	// gentle is the rate of updates, per second, while the demo stays up for kubectl.
	gentle = 1
	// settleLimit limits the time until the last events have reached their informers.
	settleLimit = 10 * time.Second
)

// demo has the processes and their clients. Fields are filled in the order of show.
type demo struct {
	options
	screen *screen
	dir    string // for all files; removed at the end

	api    *cluster.APIServer
	proxy  *cluster.Proxy
	crowd  *crowd
	writer *writer
}

// run shows the demo and cleans up, even after an error. An interrupt is not an error.
func run(ctx context.Context, o options, s *screen) error {
	dir, err := os.MkdirTemp("", "watchproxy-demo-")
	if err != nil {
		return err
	}
	d := &demo{options: o, screen: s, dir: dir}
	err = d.show(ctx)
	if ctx.Err() != nil {
		err = nil // the interrupt caused the error
	}
	return errors.Join(err, d.close())
}

func (d *demo) show(ctx context.Context) error {
	direct, err := d.startAPIServer(ctx)
	if err != nil {
		return err
	}
	pods, err := seed(ctx, direct, d.pods, d.screen)
	if err != nil {
		return err
	}
	m, err := d.startProxy(ctx, direct)
	if err != nil {
		return err
	}
	var without bill
	if d.direct > 0 {
		d.screen.say("first without watchproxy: %d informers directly at kube-apiserver", d.informers)
		wait := func(ctx context.Context) error {
			cluster.Pause(ctx, d.direct)
			return context.Cause(ctx)
		}
		if without, err = d.run(ctx, m, d.api.RESTConfig(), newWriter(direct, pods), wait); err != nil {
			return err
		}
		d.crowd.stop()
	}
	d.screen.say("now through watchproxy")
	config := d.proxy.RESTConfig()
	config.BearerToken = d.api.Token
	with, err := d.run(ctx, m, config, newWriter(direct, pods), func(ctx context.Context) error {
		if d.measured == 0 {
			if err := d.invite(); err != nil {
				return err
			}
		}
		return d.measure(ctx, m)
	})
	if err != nil {
		return err
	}
	d.screen.compare(without, with)
	if d.exit {
		return nil
	}
	if err := d.invite(); err != nil {
		return err
	}
	return d.writer.during(ctx, gentle, func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// run starts informers, writes while do runs, and returns the costs.
func (d *demo) run(ctx context.Context, m *meter, config *rest.Config, w *writer, do func(ctx context.Context) error) (b bill, err error) {
	d.crowd, d.writer = newCrowd(config, d.informers), w
	w.crowd = d.crowd
	readings := make([]*reading, 3)
	for i, step := range []func() error{
		func() error { return nil },
		func() error { return d.crowd.start(ctx, d.screen) },
		func() error { return w.during(ctx, d.rate, do) },
	} {
		if err := step(); err != nil {
			return bill{}, err
		}
		if readings[i], err = d.read(ctx, m); err != nil {
			return bill{}, err
		}
	}
	return bill{start: readings[1].cost(readings[0]), running: readings[2].cost(readings[1])}, d.settle(ctx)
}

func (d *demo) startAPIServer(ctx context.Context) (*kubernetes.Clientset, error) {
	d.screen.say("starting kube-apiserver and etcd")
	var err error
	if d.api, err = cluster.StartAPIServer(ctx, cluster.Options{Dir: filepath.Join(d.dir, "kubeapi")}); err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(d.api.RESTConfig())
}

func (d *demo) startProxy(ctx context.Context, direct *kubernetes.Clientset) (*meter, error) {
	d.screen.say("starting watchproxy")
	var err error
	options := cluster.ProxyOptions{
		Kubeconfig: d.api.Kubeconfig, Binary: d.watchproxy, TLS: true, Args: []string{"--authentication=delegated"},
	}
	if d.proxy, err = cluster.StartProxy(ctx, options); err != nil {
		return nil, err
	}
	return newMeter(ctx, direct, d.proxy)
}

// measure shows the figures of each second, and at the end the figures of the whole time.
func (d *demo) measure(ctx context.Context, m *meter) error {
	d.screen.begin(d.options)
	first, err := d.read(ctx, m)
	if err != nil {
		return err
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for last := first; ; {
		select {
		case <-second.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, err := d.read(ctx, m)
		if err != nil {
			return err
		}
		d.screen.show(now.since(last), now.at.Sub(first.at))
		if last = now; d.measured > 0 && now.at.Sub(first.at) >= d.measured {
			d.screen.end(now.since(first))
			return nil
		}
	}
}

func (d *demo) read(ctx context.Context, m *meter) (*reading, error) {
	r, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	r.delivered, r.due = d.crowd.delivered.Load(), d.writer.due.Load()
	r.delivery, r.ack = d.crowd.delivery.snapshot(), d.writer.ack.snapshot()
	r.failures = d.crowd.failures.Load()
	return r, nil
}

// settle waits, without further writes, until every informer has seen all of its updates.
func (d *demo) settle(ctx context.Context) error {
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		delivered, due := d.crowd.delivered.Load(), d.writer.due.Load()
		if delivered == due {
			d.screen.say("every informer has seen every update of its pods: %s handlers called for %s updates",
				count(delivered), count(d.writer.written.Load()))
			return nil
		}
		select {
		case <-poll.C:
		case <-limit.C:
			return fmt.Errorf("%s handlers called instead of %s: watchproxy lost or repeated events", count(delivered), count(due))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// close ends everything that show has started. Clients end first, so that servers need not wait for
// them.
func (d *demo) close() error {
	d.screen.say("stopping")
	if d.crowd != nil {
		d.crowd.stop()
	}
	var errs []error
	if d.proxy != nil {
		errs = append(errs, d.proxy.Close())
	}
	if d.api != nil {
		errs = append(errs, d.api.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
