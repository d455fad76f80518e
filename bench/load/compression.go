package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	// withState is an informer's query for the current state of a collection and then its events.
	withState = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	// compressingMinor is the first version of kube-apiserver that compresses watches.
	compressingMinor = 37
)

// plain returns the plain content of a watch.
func (s *server) plain(resp *http.Response) (io.Reader, error) {
	if !s.gzip {
		return resp.Body, nil
	}
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: a compressed watch: %w", s.name, err)
	}
	return z, nil
}

// compression compares compressed watches with plain ones, at both servers: watches that read the
// state of all pods, and events to many watches.
func (b *bench) compression(ctx context.Context) error {
	if minor, err := cluster.KubernetesMinor(); err != nil || minor < compressingMinor {
		b.say("  not measured: kube-apiserver 1.%d does not compress watches. Set WATCHPROXY_KUBEAPI.", minor)
		return err
	}
	for _, zipped := range []bool{false, true} {
		direct, proxy := b.direct.over2(1), b.secure.proxy.over2(1)
		direct.gzip, proxy.gzip = zipped, zipped
		how := map[bool]string{false: "identity", true: "gzip"}[zipped]
		if err := b.compressedSyncs(ctx, how, direct, proxy); err != nil {
			return err
		}
		if err := b.compressedEvents(ctx, how, direct, proxy); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) compressedSyncs(ctx context.Context, how string, servers ...*server) error {
	r := row{Scenario: "sync of all pods by watch, HTTP/2, " + how, Clients: 1, Unit: "informer", Servers: map[string]spent{}}
	wire, took := r.values("MiB on the wire", "MiB"), r.values("processor time of the client", "s")
	const rounds, times = 4, 5 // the first round is not measured
	for round := range rounds {
		for _, s := range servers {
			before, err := s.work()
			if err != nil {
				return err
			}
			bytes := received.Load()
			for range times {
				if _, err := s.sync(ctx, "/api/v1/pods?"+withState); err != nil {
					return err
				}
			}
			after, err := s.work()
			if err != nil {
				return err
			}
			if used := after.minus(before); round > 0 {
				r.Servers[s.name] = r.Servers[s.name].and(spent{Units: times, Seconds: used.server.Seconds()})
				wire.Value[s.name] = float64(received.Load()-bytes) / times / kib / kib
				took.Value[s.name] = used.clients.Seconds() / times
			}
		}
	}
	b.add(r)
	b.add(wire)
	b.add(took)
	return nil
}

func (b *bench) compressedEvents(ctx context.Context, how string, servers ...*server) error {
	const watchers, rate, rounds = 1000, 10, 3
	pod := workload.NewPod(0)
	path := "/api/v1/namespaces/" + pod.Namespace + "/pods?fieldSelector=metadata.name%3D" + pod.Name + "&" + withState
	r := row{Scenario: fmt.Sprintf("an event to %d watches, HTTP/2, %s", watchers, how), Clients: watchers, Unit: "delivery", Servers: map[string]spent{}}
	wire := r.values("KiB on the wire", "KiB")
	write := func(ctx context.Context, _ int) error { return b.updatePod(ctx, 0) }
	for range rounds {
		for _, s := range servers {
			alone, writes, err := b.writes(ctx, s, rate, write)
			if err != nil {
				return err
			}
			c, err := s.watch(ctx, watchers, func(int) string { return path })
			if err != nil {
				return err
			}
			const first = 2 // the object and the bookmark
			err = c.wait(ctx, first*watchers)
			before, workErr := s.work()
			bytes := received.Load()
			if err == nil && workErr == nil {
				if _, writes, err = b.writes(ctx, s, rate, write); err == nil {
					err = c.wait(ctx, int64(first+len(writes))*watchers)
				}
			}
			after, afterErr := s.work()
			n := len(writes) * watchers
			wire.Value[s.name] = float64(received.Load()-bytes) / float64(n) / kib
			c.close()
			if err := errors.Join(err, workErr, afterErr); err != nil {
				return err
			}
			r.Servers[s.name] = r.Servers[s.name].and(spent{Units: n, Seconds: after.minus(before).minus(alone).server.Seconds()})
		}
	}
	b.add(r)
	b.add(wire)
	return nil
}
