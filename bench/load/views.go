package main

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// viewConfig is the view of agents that map addresses to pods.
const viewConfig = "views:\n- {name: addresses, resources: [pods], fields: [metadata.name, spec.nodeName, status.podIPs]}\n"

// startSteps are the updates of a pod's status while it starts, as a kubelet writes them. The last
// one has the address.
const startSteps = 6

// views compares watches of whole pods with watches of three fields of them: what a delivery costs
// if each write changes one of the fields, and what arrives while pods start.
func (b *bench) views(ctx context.Context) error {
	const rounds = 3
	direct, proxy := b.direct.over2(1), b.secure.proxy.over2(1)
	for _, churn := range []struct {
		name  string
		steps int
	}{
		{"each write changes an address", 1},
		{fmt.Sprintf("pods start, by %d writes each", startSteps), startSteps},
	} {
		var whole, cut shown
		whole.begin("whole pods over HTTP/2, " + churn.name)
		cut.begin("three fields over HTTP/2, " + churn.name)
		for range rounds {
			for _, of := range []struct {
				*shown
				*server
				view string
			}{{&whole, direct, ""}, {&whole, proxy, ""}, {&cut, proxy, "/views/addresses"}} {
				if err := b.show(ctx, of.shown, of.server, of.view, churn.steps, rounds); err != nil {
					return err
				}
			}
		}
		for _, rows := range []shown{whole, cut} {
			for _, r := range []row{rows.events, rows.wire, rows.write, rows.delivery} {
				b.add(r)
			}
		}
	}
	return nil
}

// viewWatchers is the number of watches.
const viewWatchers = 1000

// shown has the rows of watches of the same form: for each write, what a watch gets and what the
// server works, and the work for each event that a watch gets.
type shown struct{ events, wire, write, delivery row }

func (s *shown) begin(scenario string) {
	r := row{Scenario: scenario, Clients: viewWatchers}
	s.events, s.wire = r.values("events for each write", "events"), r.values("bytes on the wire for each write", "KiB")
	s.write, s.delivery = r.values("processor time for each write", "ms"), r.values("processor time for each event", "µs")
}

// show makes writes while watches are open, and adds an equal part of a number of rounds to the
// rows.
func (b *bench) show(ctx context.Context, rows *shown, s *server, view string, steps, rounds int) error {
	const rate = 12
	write := func(ctx context.Context, i int) error { return b.updateStatus(ctx, i, steps) }
	alone, _, err := b.writes(ctx, s, rate, write)
	if err != nil {
		return err
	}
	rv, err := b.resourceVersion(ctx)
	if err != nil {
		return err
	}
	c, err := s.watch(ctx, viewWatchers, func(int) string { return view + "/api/v1/pods?watch=1&resourceVersion=" + rv })
	if err != nil {
		return err
	}
	defer c.close()
	before, workErr := s.work()
	bytes := received.Load()
	_, writes, err := b.writes(ctx, s, rate, write)
	expected := len(writes)
	if view != "" {
		expected /= steps
	}
	if err == nil {
		err = c.wait(ctx, int64(expected)*viewWatchers)
	}
	after, afterErr := s.work()
	got, onWire := float64(c.got.Load()), float64(received.Load()-bytes)
	if err := errors.Join(err, workErr, afterErr); err != nil {
		return err
	}
	took, n := after.minus(before).minus(alone).server.Seconds(), float64(len(writes)*rounds)
	rows.events.Value[s.name] += got / viewWatchers / n
	rows.wire.Value[s.name] += onWire / viewWatchers / n / kib
	rows.write.Value[s.name] += 1e3 * took / n
	rows.delivery.Value[s.name] += 1e6 * took / got / float64(rounds)
	return nil
}

// updateStatus writes a pod's status. The last of some steps changes its address, the others a
// condition.
func (b *bench) updateStatus(ctx context.Context, i, steps int) error {
	b.written++
	pod := workload.NewPod(i / steps % b.pods)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Step","message":"step %d"}]}}`, b.written)
	if i%steps == steps-1 {
		ip := fmt.Sprintf("10.%d.%d.%d", b.written>>16&255, b.written>>8&255, b.written&255)
		patch = fmt.Appendf(nil, `{"status":{"podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":""}]}}`, ip, ip)
	}
	if _, err := b.admin.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("cannot update the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
