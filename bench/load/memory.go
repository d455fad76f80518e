package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const mib = 1 << 20

// memory measures the servers' memory with all pods, at rest and during lists.
func (b *bench) memory(ctx context.Context) error {
	const path = "/api/v1/pods?resourceVersion=0"
	fresh, err := b.startProxy(ctx, b.api.Kubeconfig, true)
	if err != nil {
		return err
	}
	body, err := fresh.get(ctx, request{path: path})
	if err != nil {
		return err
	}
	size := float64(len(body))
	b.add(row{Scenario: "memory: the pods' JSON", Unit: "MiB", Value: map[string]float64{theFloor: size / mib}})
	const settle = 5 * time.Second
	idle, under := row{Scenario: "memory at rest", Unit: "MiB", Value: map[string]float64{}}, row{Scenario: "memory under lists", Clients: 16, Unit: "MiB", Value: map[string]float64{}}
	// The targets are 100 and 140 MiB for 34 MiB of JSON.
	const rest, busy = 100.0 / 34, 140.0 / 34
	idle.Target.AtMost, under.Target.AtMost = rest*size/mib, busy*size/mib
	for _, s := range []*server{b.direct, fresh} {
		time.Sleep(settle)
		resident, _, err := cluster.MemoryOf(s.pid)
		if err != nil {
			return err
		}
		if err := cluster.ResetPeak(s.pid); err != nil {
			return err
		}
		if _, err := b.measureReads(ctx, s, request{path: path}, under.Clients); err != nil {
			return err
		}
		_, peak, err := cluster.MemoryOf(s.pid)
		if err != nil {
			return err
		}
		idle.Value[s.name], under.Value[s.name] = float64(resident)/mib, float64(peak)/mib
	}
	b.add(idle)
	b.add(under)
	return b.history(ctx, fresh)
}

// historyTime is the default maximum age of the event log. Its other limits can make the log
// shorter.
const historyTime = 5 * time.Minute

// history fills the event log.
func (b *bench) history(ctx context.Context, s *server) error {
	const rate, writers, historyFrom = 200, 8, 1_000_000
	before, err := b.resident(ctx, s)
	if err != nil {
		return err
	}
	var written atomic.Int64
	err = workload.During(ctx, rate, writers, func(ctx context.Context, i int) error {
		written.Add(1)
		return b.patchPod(ctx, i, historyFrom+i)
	}, func(ctx context.Context) error {
		cluster.Pause(ctx, historyTime)
		return context.Cause(ctx)
	})
	if err != nil {
		return err
	}
	after, err := b.resident(ctx, s)
	if err != nil {
		return err
	}
	feeds, err := b.feeds(ctx, s)
	if err != nil {
		return err
	}
	held := 0
	for _, f := range feeds {
		held += f.LogEvents
	}
	b.add(row{
		Scenario: fmt.Sprintf("memory with %v of log, %d writes", historyTime, written.Load()), Unit: "MiB",
		Value: map[string]float64{ours: float64(after) / mib},
	})
	b.add(row{
		Scenario: fmt.Sprintf("memory of the event log, %d events", held), Unit: "KiB/event",
		Value: map[string]float64{ours: float64(after-before) / float64(held) / kib},
	})
	return nil
}
