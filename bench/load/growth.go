package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// growth shows the cost of reads as the collection grows. The costs of a list and a sync grow with
// their bytes. The costs of a page, a get and an event are nearly the same for any number of
// objects. Each size has its own proxy, which syncs from another proxy, because kube-apiserver
// would be slower than the measured proxy.
func (b *bench) growth(ctx context.Context, sizes []int) error {
	for _, size := range sizes {
		if err := b.grow(ctx, size); err != nil {
			return err
		}
		if err := b.measureAt(ctx, size); err != nil {
			return fmt.Errorf("%d pods: %w", size, err)
		}
	}
	return nil
}

// grow creates pods until there are size pods.
func (b *bench) grow(ctx context.Context, size int) error {
	from := b.pods
	b.say("making pods up to %d", size)
	err := workload.Parallel(ctx, size-from, seedLimit, func(ctx context.Context, i int) error {
		return workload.CreatePod(ctx, b.admin, workload.NewPod(from+i))
	})
	b.pods = max(b.pods, size)
	return err
}

func (b *bench) measureAt(ctx context.Context, size int) error {
	name := func(what string) string { return fmt.Sprintf("%d pods: %s", size, what) }
	value := func(what, unit string, v float64, t target) {
		b.add(row{Scenario: name(what), Clients: 1, Unit: unit, Value: map[string]float64{ours: v}, Target: t})
	}
	// The list also makes the proxy cache all pods.
	body, err := b.plain.proxy.get(ctx, request{path: "/api/v1/pods?resourceVersion=0"})
	if err != nil {
		return err
	}
	megabytes := float64(len(body)) / 1e6
	kubeconfig := filepath.Join(b.dir, "behind.kubeconfig")
	if err := b.proxyAt(b.plain.proxy).WriteKubeconfig(kubeconfig); err != nil {
		return err
	}
	s, sync, err := b.coldSync(ctx, kubeconfig)
	if err != nil {
		return err
	}
	defer b.proxyAt(s).Close() //nolint:errcheck // the measurement is done
	value("JSON", "MB", megabytes, target{})
	value("cold sync", "MB/s", megabytes/sync.took.Seconds(), target{})
	value("cold sync, CPU", "ms/MB", sync.cpu.Seconds()*1e3/megabytes, target{})
	large := target{AtMost: 2}
	if size < 100_000 {
		large = target{} // with few pods, most of the memory is independent of them
	}
	value("cold sync, peak RSS", "× JSON", float64(sync.peak)/megabytes/1e6, large)
	pod := workload.NewPod(size / 2)
	for _, read := range []struct {
		name, path, unit string
		per              float64
	}{
		{"list", "/api/v1/pods?resourceVersion=0", "ms/MB", 1e3 / megabytes},
		{"page of 500", "/api/v1/pods?limit=500", "ms", 1e3},
		{"get", "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name + "?resourceVersion=0", "µs", 1e6},
	} {
		got, err := b.measureReads(ctx, s, request{path: read.path}, 1)
		if err != nil {
			return err
		}
		value(read.name, read.unit, got.each()*read.per, target{})
	}
	const rate = 100
	event, acknowledged, err := b.writes(ctx, s, rate, b.updatePod)
	if err != nil {
		return err
	}
	value("event, without watches", "µs", event.server.Seconds()*1e6/float64(len(acknowledged)), target{})
	return nil
}
