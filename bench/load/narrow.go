package main

import (
	"context"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// narrow measures watches like those of kubelets: each watch selects only the pods of its node. All
// updates are of one node's pods.
func (b *bench) narrow(ctx context.Context) error {
	const rate = 200
	var pods []int
	for i := range b.pods {
		if workload.NewPod(i).Spec.NodeName == workload.NodeName(0) {
			pods = append(pods, i)
		}
	}
	write := func(ctx context.Context, i int) error { return b.updatePod(ctx, pods[i%len(pods)]) }
	value := map[int]float64{}
	for _, watchers := range []int{1, 5000} {
		rv, err := b.resourceVersion(ctx)
		if err != nil {
			return err
		}
		c, err := b.secure.proxy.watch(ctx, watchers, func(i int) string {
			node := workload.NodeName(0)
			if i > 0 {
				node = fmt.Sprint("node-", i)
			}
			return "/api/v1/pods?watch=1&resourceVersion=" + rv + "&fieldSelector=spec.nodeName%3D" + node
		})
		if err != nil {
			return err
		}
		time.Sleep(time.Second)
		took, acknowledged, err := b.writes(ctx, b.secure.proxy, rate, write)
		if err == nil {
			err = c.wait(ctx, int64(len(acknowledged)))
		}
		c.close()
		if err != nil {
			return err
		}
		value[watchers] = took.server.Seconds() / float64(len(acknowledged)) * 1e6
	}
	b.add(row{Scenario: "narrow watches: 1", Clients: 1, Unit: "µs/event", Value: map[string]float64{ours: value[1]}})
	b.add(row{Scenario: "narrow watches: 5,000", Clients: 5000, Unit: "µs/event", Value: map[string]float64{ours: value[5000]}})
	b.add(row{
		Scenario: "narrow watches: 5,000 against 1", Clients: 5000, Unit: "ratio",
		Target: target{AtMost: 1.5}, Value: map[string]float64{ours: value[5000] / value[1]},
	})
	return nil
}
