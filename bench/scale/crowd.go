package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// crowd has the clients of a road.
type crowd struct {
	w        *world
	road     *road
	r        *recorder
	kubelets []context.CancelFunc // each ends one
	dials    *rate.Limiter        // two processors cannot do 5,000 handshakes within TLS's 10 s

	ctx     context.Context // of the clients
	cancel  context.CancelCauseFunc
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		pods []cache.Store // of informers
	}
}

func newCrowd(w *world, road *road) *crowd {
	c := &crowd{w: w, road: road, r: newRecorder(), kubelets: make([]context.CancelFunc, w.nodes), dials: rate.NewLimiter(200, 1)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// identity returns a user's certificate and key.
func (c *crowd) identity(user string, groups ...string) (certificate, key []byte, err error) {
	signed, err := c.w.authority.Sign(24*time.Hour, user, groups...)
	if err != nil {
		return nil, nil, err
	}
	return cluster.PEM(signed)
}

// config is a client's configuration, with a connection of its own. A kubelet's clients share it.
func (c *crowd) config(user string, groups ...string) (_ *rest.Config, err error) {
	config := c.road.config()
	config.CertData, config.KeyData, err = c.identity(user, groups...)
	config.UserAgent = user
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := c.dials.Wait(ctx); err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	config.Wrap(c.r.wrap)
	return config, err
}

// start returns when all clients have their first state.
func (c *crowd) start(ctx context.Context) error {
	const limit = 30 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the crowd has not started within %v", limit))
	defer cancel()
	say("%s: starting %d kubelets", c.road.name, c.w.nodes)
	began := time.Now()
	for i := range c.w.dashboards {
		c.spawn(i, c.visit)
	}
	for i := range c.w.jobs {
		c.spawn(i, c.build)
	}
	err := workload.Parallel(ctx, c.w.nodes, 16, func(ctx context.Context, i int) error {
		return c.startKubelet(ctx, i, *c.w.now.Load())
	})
	if err != nil {
		return err
	}
	say("%s: starting %d controllers", c.road.name, c.w.controllers)
	if err := workload.Parallel(ctx, c.w.controllers, 4, c.startController); err != nil {
		return err
	}
	say("%s: started after %v", c.road.name, time.Since(began).Round(time.Second))
	return nil
}

// spawn runs a client that works until the crowd ends. Its error ends the crowd.
func (c *crowd) spawn(i int, work func(context.Context, int) error) {
	c.running.Go(func() {
		if err := work(c.ctx, i); err != nil && c.ctx.Err() == nil {
			c.cancel(err)
		}
	})
}

// recovery limits the waits of the crowd.
const recovery = 5 * time.Minute

// storm restarts kubelets, all at once, and returns when they have their state, but not before the
// end of a steady episode, so that the clients' backlog counts.
func (c *crowd) storm(ctx context.Context) error {
	for _, stop := range c.kubelets[:c.w.storm] {
		stop()
	}
	var after sync.WaitGroup
	after.Go(func() { cluster.Pause(ctx, c.w.steady) })
	defer after.Wait()
	within, cancel := context.WithTimeoutCause(ctx, recovery, lateError{fmt.Errorf("not within %v", recovery)})
	defer cancel()
	return workload.Parallel(within, c.w.storm, c.w.storm, func(ctx context.Context, i int) error {
		return c.startKubelet(ctx, i, "")
	})
}

// reconnected waits until as many watches are open as before a restart, for a while.
func (c *crowd) reconnected(ctx context.Context, before int64) error {
	const steady = 5 * time.Second
	for end, since := time.Now().Add(recovery), time.Now(); ; cluster.Pause(ctx, 100*time.Millisecond) {
		if c.r.watches.Load() < before {
			since = time.Now()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case time.Since(since) > steady:
			return nil
		case time.Now().After(end):
			return lateError{fmt.Errorf("%d of %d watches are open after %v", c.r.watches.Load(), before, recovery)}
		}
	}
}

var errEnded = errors.New("the crowd has ended")

// close returns when no client runs any more, with the error that ended the crowd before.
func (c *crowd) close() error {
	c.cancel(errEnded)
	c.running.Wait()
	if err := context.Cause(c.ctx); !errors.Is(err, errEnded) {
		return err
	}
	return nil
}
