package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// ingest measures the time in which a cold proxy caches all pods. Upstream is the apiserver, and
// then another proxy, which is faster. The floor is a client that sends the same request and
// discards the response, so it shows upstream's own speed. The rounds alternate, and the best round
// of each server counts.
//
// The client reads over HTTP/1.1 without a kubeconfig. A proxy first discovers the resource, and
// reads over HTTP/2.
func (b *bench) ingest(ctx context.Context) error {
	b.say("measuring: cold syncs of %d pods", b.pods)
	const path = "/api/v1/pods?resourceVersion=0"
	c, err := b.plain.proxy.dial(ctx, 64<<10)
	if err != nil {
		return err
	}
	defer c.close()
	size, err := c.ask(request{path: path})
	if err != nil {
		return err
	}
	if err := b.hasAll(ctx, b.plain.proxy); err != nil {
		return err
	}
	behind := filepath.Join(b.dir, "behind.kubeconfig")
	if err := b.proxyAt(b.plain.proxy).WriteKubeconfig(behind); err != nil {
		return err
	}
	for _, from := range []struct {
		*server
		kubeconfig string
		most       float64 // ms/MB; 10 is 100 MB/s
	}{{b.direct, b.api.Kubeconfig, 0}, {b.plain.proxy, behind, 10}} {
		const rounds, settle = 3, 5 * time.Second
		var all []coldSync
		for range rounds {
			time.Sleep(settle)
			began := time.Now()
			if _, err := from.sync(ctx, "/api/v1/pods?"+withState); err != nil {
				return err
			}
			least := time.Since(began)
			time.Sleep(settle)
			s, sync, err := b.coldSync(ctx, from.kubeconfig)
			if err == nil {
				err = b.proxyAt(s).Stop()
			}
			if err != nil {
				return fmt.Errorf("cold sync from %s: %w", from.name, err)
			}
			sync.least = least
			all = append(all, sync)
		}
		best := all[0]
		for _, sync := range all[1:] {
			best.took, best.least, best.cpu = min(best.took, sync.took), min(best.least, sync.least), min(best.cpu, sync.cpu)
			best.peak = max(best.peak, sync.peak)
		}
		name, megabytes := fmt.Sprintf("cold sync of %d pods from %s", b.pods, from.name), float64(size)/1e6
		perMB := func(d time.Duration) float64 { return d.Seconds() * 1e3 / megabytes }
		b.add(row{Scenario: name + ": time", Clients: 1, Unit: "ms/MB", Target: target{AtMost: from.most}, Value: map[string]float64{
			ours: perMB(best.took), theFloor: perMB(best.least),
		}})
		b.add(row{Scenario: name + ": CPU", Clients: 1, Unit: "ms/MB", Value: map[string]float64{ours: perMB(best.cpu)}})
		b.add(row{Scenario: name + ": peak RSS", Clients: 1, Unit: "× JSON", Target: target{AtMost: 2}, Value: map[string]float64{ours: float64(best.peak) / float64(size)}})
	}
	return nil
}

// coldSync is the result of one cold sync, and the time of a client that only reads.
type coldSync struct {
	took, cpu, least time.Duration
	peak             int64 // bytes
}

// coldSync starts a proxy and sends it a list of pods with a selector that matches nothing. The
// proxy answers when it has all pods.
func (b *bench) coldSync(ctx context.Context, kubeconfig string) (s *server, c coldSync, err error) {
	if s, err = b.startProxy(ctx, kubeconfig, false); err != nil {
		return nil, c, err
	}
	began := time.Now()
	if _, err := s.get(ctx, request{path: "/api/v1/pods?resourceVersion=0&limit=1&fieldSelector=metadata.name%3Dnone"}); err != nil {
		return nil, c, err
	}
	c.took = time.Since(began)
	if c.cpu, err = s.cpu(); err != nil {
		return nil, c, err
	}
	if _, c.peak, err = cluster.MemoryOf(s.pid); err != nil {
		return nil, c, err
	}
	return s, c, b.hasAll(ctx, s)
}

// hasAll checks that a proxy has cached all pods, instead of just forwarding a request.
func (b *bench) hasAll(ctx context.Context, s *server) error {
	feeds, err := b.feeds(ctx, s)
	if err != nil {
		return err
	}
	most := 0
	for _, f := range feeds {
		most = max(most, f.Objects)
	}
	if most < b.pods {
		return fmt.Errorf("the proxy has %d of %d pods", most, b.pods)
	}
	return nil
}

// feedStatus is what a proxy tells of one of its caches.
type feedStatus struct{ Objects, LogEvents int }

func (b *bench) feeds(ctx context.Context, s *server) ([]feedStatus, error) {
	var status struct{ Feeds []feedStatus }
	text, err := b.adminGet(ctx, s, "/status")
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err != nil {
		return nil, fmt.Errorf("status of the proxy: %w", err)
	}
	return status.Feeds, nil
}
