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
	value := map[int]float64{}
	for _, watchers := range []int{1, 5000} {
		var err error
		if value[watchers], err = b.nodeWatches(ctx, b.secure.proxy, watchers, rate); err != nil {
			return err
		}
	}
	b.add(row{Scenario: "narrow watches: 1", Clients: 1, Unit: "µs/event", Value: map[string]float64{ours: value[1]}})
	b.add(row{Scenario: "narrow watches: 5,000", Clients: 5000, Unit: "µs/event", Value: map[string]float64{ours: value[5000]}})
	b.add(row{
		Scenario: "narrow watches: 5,000 against 1", Clients: 5000, Unit: "ratio",
		Target: target{AtMost: 1.5}, Value: map[string]float64{ours: value[5000] / value[1]},
	})
	return nil
}

// firstNode returns a function that updates pods of the first node.
func (b *bench) firstNode() func(context.Context, int) error {
	var pods []int
	for i := range b.pods {
		if workload.NewPod(i).Spec.NodeName == nodeOf(0) {
			pods = append(pods, i)
		}
	}
	return func(ctx context.Context, i int) error { return b.updatePod(ctx, pods[i%len(pods)]) }
}

// nodeWatches returns the proxy's processor time for an event to the first of some watches, each of
// the pods of another node, in µs.
func (b *bench) nodeWatches(ctx context.Context, proxy *server, watchers, rate int) (float64, error) {
	if _, err := proxy.get(ctx, request{path: "/api/v1/pods?resourceVersion=0"}); err != nil { // fills the cache
		return 0, err
	}
	rv, err := b.resourceVersion(ctx)
	if err != nil {
		return 0, err
	}
	c, err := proxy.watch(ctx, watchers, func(i int) string {
		node := nodeOf(0)
		if i > 0 { // a node without pods
			node = fmt.Sprint("node-", i)
		}
		return "/api/v1/pods?watch=1&resourceVersion=" + rv + "&fieldSelector=spec.nodeName%3D" + node
	})
	if err != nil {
		return 0, err
	}
	defer c.close()
	time.Sleep(time.Second)
	took, acknowledged, err := b.writes(ctx, proxy, rate, b.firstNode())
	if err == nil {
		err = c.wait(ctx, int64(len(acknowledged)))
	}
	return took.server.Seconds() / float64(max(len(acknowledged), 1)) * 1e6, err
}
