package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// initialState is how a feed asks for a collection: as it is now.
const initialState = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// ingested is how many pods the target is for, and the least that there are then.
const ingested = 100_000

// ingest is how long a cold proxy takes to have all pods: from the apiserver, and from another proxy, which is faster. The
// floor is a client that asks for the same and throws it away: upstream's own pace.
func (b *bench) ingest(ctx context.Context) error {
	if err := b.grow(ctx, max(b.pods, ingested)); err != nil {
		return err
	}
	body, err := b.plain.proxy.get(ctx, request{path: "/api/v1/pods?resourceVersion=0"})
	if err != nil {
		return err
	}
	size := float64(len(body))
	megabytes := size / 1e6
	behind := filepath.Join(b.dir, "behind.kubeconfig")
	if err := b.proxyAt(b.plain.proxy).WriteKubeconfig(behind); err != nil {
		return err
	}
	for _, from := range []struct {
		*server
		kubeconfig string
		most       float64 // ms/MB; 10 is 100 MB/s
	}{{b.direct, b.api.Kubeconfig, 0}, {b.plain.proxy, behind, 10}} {
		began := time.Now()
		if err := from.sync(ctx, "/api/v1/pods"+initialState); err != nil {
			return err
		}
		least := time.Since(began)
		p, err := cluster.StartProxy(ctx, cluster.ProxyOptions{Kubeconfig: from.kubeconfig, Binary: b.watchproxy})
		if err != nil {
			return err
		}
		b.proxies = append(b.proxies, p)
		s, err := newServer(ours, p.URL, nil, "", p.CPU, p.PID())
		if err != nil {
			return err
		}
		began = time.Now()
		if _, err := s.get(ctx, request{path: "/api/v1/pods?resourceVersion=0&limit=1&fieldSelector=metadata.name%3Dnone"}); err != nil {
			return err
		}
		took := time.Since(began)
		cpu, err := p.CPU()
		if err != nil {
			return err
		}
		_, peak, err := cluster.MemoryOf(s.pid)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("cold sync of %d pods from %s", b.pods, from.name)
		b.add(row{Scenario: name + ": time", Clients: 1, Unit: "ms/MB", Target: target{AtMost: from.most}, Value: map[string]float64{
			ours: took.Seconds() * 1e3 / megabytes, theFloor: least.Seconds() * 1e3 / megabytes,
		}})
		b.add(row{Scenario: name + ": CPU", Clients: 1, Unit: "ms/MB", Value: map[string]float64{ours: cpu.Seconds() * 1e3 / megabytes}})
		b.add(row{Scenario: name + ": peak RSS", Clients: 1, Unit: "× JSON", Target: target{AtMost: 2}, Value: map[string]float64{ours: float64(peak) / size}})
		if err := p.Stop(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
