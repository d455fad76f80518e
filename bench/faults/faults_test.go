package faults

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

const (
	readerCount   = 3
	scenarioLimit = 4 * time.Minute
	before        = time.Second // also the pause after the fault
)

// In every scenario, watchers see no event lost, duplicated, reordered or invented. A read of the
// most recent state has every write that was acknowledged before it.
func TestFaults(t *testing.T) {
	seed := cluster.Seed()
	var table strings.Builder
	fmt.Fprintf(&table, "%s, %d watchers, %d writers, %d readers, %d processors, seed %d.\n\n%s\n",
		time.Now().UTC().Format(time.DateOnly), *watching, writerCount, readerCount, runtime.NumCPU(), seed, tableHead)
	shared := cluster.APIServerT(t, cluster.Options{})
	for i, s := range scenarios() {
		if !s.short && !*everything {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			api := shared
			if s.own != nil {
				api = cluster.APIServerT(t, *s.own)
			}
			of := configMaps
			if s.custom {
				of = gadgets
			}
			w := newWorld(t, api, of)
			v := s.run(t, w, fmt.Sprintf("f-%d", i), seed+uint64(i))
			fmt.Fprintln(&table, v.row(s.name))
			t.Log(v.row(s.name))
			if v.lost+v.duplicated+v.reordered+v.invented+v.stale > 0 {
				t.Errorf("%+v\n%s", v, strings.Join(v.found, "\n"))
			}
			if v.unduly > 0 {
				t.Errorf("%d watches were told to begin anew without a reason", v.unduly)
			}
			if v.relists > s.relists {
				t.Errorf("%.0f relists", v.relists)
			}
			if v.events == 0 || v.answered == 0 {
				t.Error("nothing was seen, so nothing was shown")
			}
		})
	}
	if *reportFile != "" {
		if err := os.WriteFile(*reportFile, []byte(table.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// run runs a scenario.
func (s scenario) run(t *testing.T, w *world, namespace string, seed uint64) (v verdict) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenarioLimit)
	defer cancel()
	first := w.namespace(t, namespace)
	cluster.MustT(t, w.awaken(ctx, w.client(t), namespace))
	changing := startWriters(ctx, w.dynamic, w.of, namespace, seed)
	defer changing.end()

	due := make([]atomic.Uint64, len(selections))
	watchers, errs := make([]*watcher, *watching), make([]error, *watching)
	var watched, read sync.WaitGroup
	for i := range watchers {
		watchers[i] = &watcher{of: w.of, selection: i % len(selections)}
		client := w.client(t)
		ctx, stop := context.WithCancel(ctx)
		watchers[i].stop = stop
		watched.Go(func() { errs[i] = watchers[i].run(ctx, client, namespace, first, &due[watchers[i].selection]) })
	}
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	readers := make([]*reader, readerCount)
	for i := range readers {
		readers[i] = &reader{}
		client := w.client(t)
		read.Go(func() { readers[i].run(reading, client, changing) })
	}

	time.Sleep(before)
	s.disturb(t, w)
	v.fresh = w.untilFresh(ctx, t, changing)
	time.Sleep(before)
	changing.end()
	stopReading()
	read.Wait()
	last, err := changing.mark(ctx)
	cluster.MustT(t, err)
	for i := range due {
		due[i].Store(last[i])
	}
	for _, o := range watchers { // the last event may have arrived before due was set
		for o.at.Load() < last[o.selection] && ctx.Err() == nil {
			pause(ctx)
		}
		o.stop()
	}
	watched.Wait()
	w.count(t)

	v.watchers, v.relists, v.lists = len(watchers), w.relists, w.lists
	direct := w.direct(t)
	refs := make([]*conformance.Reference, len(selections))
	states := make([]map[string]uint64, len(selections))
	for i := range selections {
		switch {
		case s.forgets:
			states[i] = present(t, direct, w.of, namespace, i)
		default:
			refs[i], err = reference(ctx, direct, w.of, namespace, i, first, last[i])
		}
		cluster.MustT(t, err)
	}
	for i, o := range watchers {
		if errs[i] != nil {
			v.lost++
			v.complain("%v", errs[i])
			continue
		}
		v.expired += o.expired.Load()
		if forgotten := s.forgets && leavable(o.selection); !s.again && !forgotten {
			v.unduly += o.expired.Load()
		}
		for _, h := range o.histories {
			for _, c := range h.Connections {
				v.events += len(c.Events)
			}
		}
		if s.forgets {
			v.sound(o, states[o.selection])
		} else {
			v.exact(o, refs[o.selection])
		}
	}
	for _, o := range readers {
		v.reads(o, refs[0])
	}
	return v
}

// untilFresh returns the seconds until the proxy shows a write that is made now.
func (w *world) untilFresh(ctx context.Context, t *testing.T, o *writers) float64 {
	t.Helper()
	began, client := time.Now(), w.client(t)
	for ctx.Err() == nil {
		rv, err := o.put(ctx, "fresh", colours[2], 0)
		if err != nil {
			pause(ctx)
			continue
		}
		if got, err := readList(ctx, client, w.of, o.namespace); err == nil && got.rv >= rv {
			return time.Since(began).Seconds()
		}
		pause(ctx)
	}
	t.Fatal("the proxy does not get fresh again")
	return 0
}
