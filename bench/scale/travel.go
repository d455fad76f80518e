package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// episode is a part of a journey, and what was measured in it.
type episode struct {
	name    string
	seconds float64
	measured
	latencies []float64 // from etcd's commit to the reading of an event, ms
	used      reading
	failure   string // why the crowd has not recovered, else empty
}

// lateError tells that the crowd has not recovered in time. The journey goes on.
type lateError struct{ error }

// travel lets a crowd travel a road.
func (w *world) travel(ctx context.Context, name string) (all []episode, err error) {
	runtime.GOMAXPROCS(1) // leave the other processor to the servers
	if err := w.rest(ctx); err != nil {
		return nil, err
	}
	r, err := w.open(ctx, name)
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return nil, err
	}
	url, err := os.ReadFile(filepath.Join(w.api.Dir, "etcd.url")) // it changes when the apiserver restarts
	if err != nil {
		return nil, err
	}
	seen, err := newCommits(ctx, string(url))
	if err != nil {
		return nil, err
	}
	defer seen.close()
	c := newCrowd(w, r)
	defer func() { err = errors.Join(err, c.close()) }()

	// measure measures an episode.
	measure := func(ctx context.Context, name string, do func(context.Context) error) error {
		say("%s: %s", r.name, name)
		c.r.take()
		began, err := w.read(ctx, r)
		if err != nil {
			return err
		}
		failed := do(ctx)
		if failed != nil && !errors.As(failed, new(lateError)) {
			return failed
		}
		ended, err := w.read(ctx, r)
		if err != nil {
			return errors.Join(failed, err)
		}
		e := episode{name: name, seconds: ended.at.Sub(began.at).Seconds(), measured: c.r.take(), used: ended.since(began)}
		e.latencies = seen.latencies(e.reads)
		if failed != nil {
			e.failure = failed.Error()
			say("%s: %s: %v", r.name, name, failed)
		}
		all = append(all, e)
		return ctx.Err()
	}
	watches := int64(0)
	restarting := func(restart func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := restart(ctx); err != nil {
				return err
			}
			return c.reconnected(ctx, watches)
		}
	}
	err = w.churning(ctx, name, func(ctx context.Context) error {
		if err := measure(ctx, "start", c.start); err != nil {
			return err
		}
		watches = c.r.watches.Load()
		if err := measure(ctx, "steady", c.work); err != nil {
			return err
		}
		if err := measure(ctx, "storm", c.storm); err != nil {
			return err
		}
		if len(r.proxies) > 0 {
			if err := measure(ctx, "proxy restart", restarting(func(ctx context.Context) error {
				return errors.Join(r.proxies[0].Stop(), r.proxies[0].Start(ctx))
			})); err != nil {
				return err
			}
		}
		return measure(ctx, "apiserver restart", restarting(func(ctx context.Context) error {
			within, cancel := context.WithTimeout(ctx, recovery)
			defer cancel()
			err := errors.Join(w.api.Stop(), w.api.Start(within))
			if err != nil && ctx.Err() == nil {
				// It never becomes ready while its clients ask.
				err = errors.Join(lateError{err}, c.close(), w.api.Start(ctx))
			}
			return err
		}))
	})
	if err != nil || c.ctx.Err() != nil {
		return all, err
	}
	if err := c.checkInformers(ctx); err != nil {
		return all, err
	}
	say("%s: all informers of pods agree with the apiserver", r.name)
	return all, nil
}

// work waits while the crowd works.
func (c *crowd) work(ctx context.Context) error {
	select {
	case <-time.After(c.w.steady):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return fmt.Errorf("a client has failed: %w", context.Cause(c.ctx))
	}
}
