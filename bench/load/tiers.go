package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// tiers measures the caches of 1,000 nodes behind one proxy: what each costs the proxy, what the
// apiserver sees of them, and the memory of a node's proxy.
func (b *bench) tiers(ctx context.Context) error {
	const count, rate = 1000, 200
	proxy, err := b.startProxy(ctx, b.api.Kubeconfig, true)
	if err != nil {
		return err
	}
	watches := func() (float64, error) {
		text, err := b.direct.get(ctx, request{path: "/metrics", accept: "text/plain"})
		return cluster.Metrics("\n"+string(text)).Sum("apiserver_longrunning_requests", `resource="pods"`, `verb="WATCH"`), err
	}
	before, err := watches()
	if err != nil {
		return err
	}
	value := func(x float64) map[string]float64 { return map[string]float64{ours: x} }
	narrow, err := b.nodeWatches(ctx, proxy, 1, rate)
	if err != nil {
		return err
	}
	n, err := b.startNodes(proxy, count)
	if err != nil {
		return err
	}
	rss, _, err := cluster.MemoryOf(n.cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, n.close())
	}
	after, err := watches()
	if err != nil {
		return errors.Join(err, n.close())
	}
	had, err := n.events()
	if err != nil {
		return errors.Join(err, n.close())
	}
	took, acknowledged, err := b.writes(ctx, proxy, rate, b.firstNode())
	if err == nil {
		err = n.wait(ctx, had+int64(len(acknowledged)))
	}
	if err = errors.Join(err, n.close()); err != nil {
		return err
	}
	cached := took.server.Seconds() / float64(len(acknowledged)) * 1e6
	b.add(row{Scenario: "node caches: watches of pods at the apiserver", Clients: count, Unit: "watch", Target: target{AtMost: 1}, Value: value(after - before)})
	b.add(row{Scenario: "an event of one node, 1 watch", Clients: 1, Unit: "µs", Value: value(narrow)})
	b.add(row{Scenario: "an event of one node, node caches", Clients: count, Unit: "µs", Value: value(cached)})
	b.add(row{Scenario: "the same against 1 watch", Clients: count, Unit: "ratio", Target: target{AtMost: 2}, Value: value(cached / narrow)})
	b.add(row{Scenario: "memory of a node's cache in a common process", Clients: count, Unit: "MiB", Target: target{AtMost: 15}, Value: value(float64(rss) / kib / kib / count)})
	return b.nodeProxy(ctx, proxy)
}

// wait returns when the first node's cache has had a number of events.
func (n *nodes) wait(ctx context.Context, events int64) error {
	const limit = time.Minute
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		got, err := n.events()
		if err != nil || got >= events {
			return err
		}
		if time.Since(began) > limit || ctx.Err() != nil {
			return fmt.Errorf("%d of %d events came within %v", got, events, limit)
		}
	}
}

// nodeProxy measures the memory of a whole proxy of one node, which has answered one list.
func (b *bench) nodeProxy(ctx context.Context, central *server) error {
	dir, err := os.MkdirTemp(b.dir, "node")
	if err != nil {
		return err
	}
	config, kubeconfig := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubeconfig")
	text := "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\ncache: {scopes: [{resources: [pods], fieldSelector: spec.nodeName=" + nodeOf(0) + "}]}\n"
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o600), b.writeKubeconfig(kubeconfig, central)); err != nil {
		return err
	}
	p, err := cluster.StartProxy(ctx, cluster.ProxyOptions{Kubeconfig: kubeconfig, Binary: b.watchproxy, Args: []string{"--config", config}})
	if err != nil {
		return err
	}
	b.proxies = append(b.proxies, p)
	s, err := newServer(ours, p.URL, p.CA, "", p.CPU, p.PID())
	if err != nil {
		return err
	}
	if _, err := s.get(ctx, request{path: "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D" + nodeOf(0)}); err != nil {
		return err
	}
	const idle = 10 * time.Second
	time.Sleep(idle)
	rss, _, err := cluster.MemoryOf(p.PID())
	b.add(row{Scenario: "an idle proxy of a node, resident", Clients: 1, Unit: "MiB", Target: target{AtMost: 40}, Value: map[string]float64{ours: float64(rss) / kib / kib}})
	return err
}
