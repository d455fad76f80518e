package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// usage is what a process has used: since its start, or in an episode.
type usage struct {
	pid           int
	cpu           time.Duration
	memory, peak  int64 // resident bytes, at the end and at most
	read, written int64 // bytes, by calls of the system: sockets and files
}

// reading has the usage of each process of a road, by name, and the requests that the apiserver has
// answered or is answering.
type reading struct {
	at       time.Time
	used     map[string]usage
	requests float64
}

// names of the processes.
const (
	apiserver = "kube-apiserver and etcd"
	clients   = "clients"
)

func (w *world) read(ctx context.Context, r *road) (found reading, err error) {
	found.at, found.used = time.Now(), map[string]usage{}
	pids := map[string]int{apiserver: w.api.PID(), clients: os.Getpid(), "kwok": w.kwok.Process.Pid}
	for i, p := range r.proxies {
		pids[fmt.Sprintf("watchproxy %d", i+1)] = p.PID()
	}
	for name, pid := range pids {
		if found.used[name], err = usageOf(pid); err != nil {
			return found, err
		}
	}
	text, err := w.admin.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return found, fmt.Errorf("cannot read the apiserver's metrics: %w", err)
	}
	found.requests = cluster.Metrics(text).Sum("apiserver_request_total") + cluster.Metrics(text).Sum("apiserver_longrunning_requests")
	return found, nil
}

// usageOf also begins a new peak.
func usageOf(pid int) (u usage, err error) {
	u.pid = pid
	if u.cpu, err = cluster.CPUOf(pid); err != nil {
		return u, err
	}
	if u.memory, u.peak, err = cluster.MemoryOf(pid); err != nil {
		return u, err
	}
	if err := cluster.ResetPeak(pid); err != nil {
		return u, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return u, err
	}
	_, err = fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\n", &u.read, &u.written) // proc_pid_io(5)
	return u, err
}

// since returns what was used after an earlier reading. A process that has restarted since then
// counts from its start.
func (r reading) since(e reading) reading {
	after := reading{at: r.at, used: map[string]usage{}, requests: r.requests - e.requests}
	for name, now := range r.used {
		if then := e.used[name]; then.pid == now.pid {
			now.cpu, now.read, now.written = now.cpu-then.cpu, now.read-then.read, now.written-then.written
		}
		after.used[name] = now
	}
	if r.used[apiserver].pid != e.used[apiserver].pid {
		after.requests = r.requests
	}
	return after
}
