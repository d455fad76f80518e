package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httputil"
	"runtime"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// fanOuts measures the delivery of the same events to many watches.
func (b *bench) fanOuts(ctx context.Context) error {
	for _, f := range []struct{ watchers, rate int }{{100, 100}, {1000, 10}, {5000, 2}} {
		for _, secure := range []bool{true, false} {
			if !secure && f.watchers != 1000 {
				continue
			}
			if err := b.fanOut(ctx, f.watchers, f.rate, secure); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	fanOutTime     = 5 * time.Second
	fanOutRounds   = 3
	targetedRounds = 5    // the apiserver's time varies most from round to round
	targeted       = 1000 // number of watchers for the rows with targets
)

func (b *bench) fanOut(ctx context.Context, watchers, rate int, secure bool) error {
	name, at, direct := "plain", b.plain, (*server)(nil)
	if secure {
		name, at, direct = "TLS", b.secure, b.direct
	}
	r := row{
		Scenario: fmt.Sprintf("fan-out, %d events/s, %s", rate, name), Clients: watchers, Unit: "delivery", Servers: map[string]spent{},
	}
	kernel := r.values("processor time in the kernel", "µs/delivery")
	clients := r.values("processor time of the clients", "µs/delivery")
	busy := r.values("time of server and clients on all processors", "ms/event")
	delay := r.values("event delay, p50", "ms")
	late := r.values("event delay, p99", "ms")
	meanwhile := r.values("event delay of another watcher at kube-apiserver, p99", "ms")
	last := r.values("event delay, max", "ms")
	rounds := fanOutRounds
	if watchers == targeted {
		r.Target.OfFloor = 1.7
		if secure {
			rounds = targetedRounds
			r.Target.LessThanAPIServer, late.Target.LessThanAPIServer = 1.8, 2
		}
	}
	over := ""
	if secure {
		over = "tls"
	}
	frame, err := b.frame(ctx)
	if err != nil {
		return err
	}
	f, floor, err := startFloor(over, frame)
	if err != nil {
		return err
	}
	defer f.close() //nolint:errcheck // it is killed
	servers := []written{{at.proxy, b.updatePod}, floor}
	if direct != nil {
		servers = append([]written{{direct, b.updatePod}}, servers...)
	}
	delays, _, err := b.deliveries(ctx, r, rate, rounds, servers)
	if err != nil {
		return err
	}
	for name, d := range delays {
		n := float64(r.Servers[name].Units)
		if name != kubeAPIServer { // its processor time includes the writes
			kernel.Value[name] = float64(d.kernel.Microseconds()) / n
		}
		clients.Value[name] = float64(d.clients.Microseconds()) / n
		all := r.Servers[name].Seconds + d.clients.Seconds()
		busy.Value[name] = 1000 * all / n * float64(watchers) / float64(runtime.NumCPU())
		delay.Value[name], late.Value[name], last.Value[name] = percentiles(d.all)
		if len(d.upstream) > 0 {
			_, meanwhile.Value[name], _ = percentiles(d.upstream)
		}
	}
	b.add(r)
	b.report.Rows = append(b.report.Rows, kernel, clients, busy, delay, late, meanwhile, last)
	if watchers != targeted {
		return nil
	}
	return b.profileFanOut(ctx, r.Scenario, watchers, rate, servers)
}

// deliveries measures the deliveries of r at all servers in turn. It also returns the KiB on the
// wire of one delivery.
func (b *bench) deliveries(ctx context.Context, r row, rate, rounds int, servers []written) (delays, map[string]float64, error) {
	delays, wire := delays{}, map[string]float64{}
	for range rounds {
		for _, s := range servers {
			// The result excludes the server's cost of the writes themselves.
			alone, acknowledged, err := b.writes(ctx, s.server, rate, s.write)
			if err != nil {
				return nil, nil, err
			}
			delays.of(s.name).alone = alone.by(len(acknowledged))
			before := received.Load()
			got, err := b.deliver(ctx, s, r.Clients, rate, delays.of(s.name), nil)
			if err != nil {
				return nil, nil, err
			}
			wire[s.name] = float64(received.Load()-before) / float64(got.Units) / kib
			r.Servers[s.name] = r.Servers[s.name].and(got)
		}
	}
	return delays, wire, nil
}

// written is a server and a function that writes events for its watches.
type written struct {
	*server
	write func(context.Context, int) error
}

// delays has the measurements for each server.
type delays map[string]*delay

type delay struct {
	alone   work          // a write without a watch
	kernel  time.Duration // the kernel's part of the server's processor time
	clients time.Duration // processor time of the clients
	all     []float64     // ms from the acknowledgement of a write to the arrival of its event
	// upstream is the same for a watch at kube-apiserver, the source of the proxy's events.
	upstream []float64
}

func (d delays) of(server string) *delay {
	if d[server] == nil {
		d[server] = &delay{}
	}
	return d[server]
}

// percentiles returns the median, the 99th percentile and the maximum.
func percentiles(ms []float64) (p50, p99, longest float64) {
	slices.Sort(ms)
	n := len(ms)
	return ms[n/2], ms[n*99/100], ms[n-1]
}

// deliver makes writes while watches of all pods are open. If there is a profiler, it runs only
// during the measured time.
func (b *bench) deliver(ctx context.Context, s written, watchers, rate int, d *delay, profiler *perf) (got spent, err error) {
	rv, err := b.resourceVersion(ctx)
	if err != nil {
		return got, err
	}
	path := "/api/v1/pods?watch=1&resourceVersion=" + rv
	c, err := s.watch(ctx, watchers, func(int) string { return path })
	if err != nil {
		return got, err
	}
	defer c.close()
	one := &crowd{}
	if s.name == ours {
		if one, err = b.direct.watch(ctx, 1, func(int) string { return path }); err != nil {
			return got, err
		}
		defer one.close()
	}
	const settle = time.Second
	time.Sleep(settle)
	if profiler != nil {
		profiler.begin(ctx, s.pid)
		defer profiler.end()
	}
	kernelBefore, err := cluster.KernelCPUOf(s.pid)
	if err != nil {
		return got, err
	}
	before, err := s.work()
	if err != nil {
		return got, err
	}
	_, acknowledged, err := b.writes(ctx, s.server, rate, s.write)
	if err != nil {
		return got, err
	}
	deliveries := len(acknowledged) * watchers
	if err := c.wait(ctx, int64(deliveries)); err != nil {
		return got, err
	}
	after, err := s.work()
	if err != nil {
		return got, err
	}
	kernelAfter, err := cluster.KernelCPUOf(s.pid)
	if err != nil {
		return got, err
	}
	d.kernel += kernelAfter - kernelBefore
	if profiler != nil {
		profiler.end()
	}
	c.close()
	one.close()
	d.upstream = append(d.upstream, one.delays(acknowledged)...)
	d.all = append(d.all, c.delays(acknowledged)...)
	took := after.minus(before).minus(d.alone.times(len(acknowledged)))
	d.clients += took.clients
	return spent{Units: deliveries, Seconds: took.server.Seconds()}, nil
}

// work is the processor time of a server, and of this program, which runs the clients.
type work struct{ server, clients time.Duration }

func (s *server) work() (w work, err error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return w, fmt.Errorf("processor time of the clients: %w", err)
	}
	w.clients = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	w.server, err = s.cpu()
	return w, err
}

func (w work) minus(other work) work {
	return work{server: w.server - other.server, clients: w.clients - other.clients}
}

func (w work) times(n int) work {
	return work{server: w.server * time.Duration(n), clients: w.clients * time.Duration(n)}
}

// by returns the work divided by n.
func (w work) by(n int) work {
	return work{server: w.server / time.Duration(n), clients: w.clients / time.Duration(n)}
}

// writes makes writes one after another, at a given rate. It returns their processor time and the
// times of the acknowledgements.
func (b *bench) writes(ctx context.Context, s *server, rate int, write func(context.Context, int) error) (took work, _ []time.Time, err error) {
	before, err := s.work()
	if err != nil {
		return took, nil, err
	}
	var acknowledged []time.Time
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := range int(fanOutTime.Seconds()) * rate {
		if err := write(ctx, i); err != nil {
			return took, nil, err
		}
		acknowledged = append(acknowledged, time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return took, nil, context.Cause(ctx)
		}
	}
	after, err := s.work()
	return after.minus(before), acknowledged, err
}

// updatePod changes a label of a pod. It must not be called concurrently.
func (b *bench) updatePod(ctx context.Context, i int) error {
	b.written++
	return b.patchPod(ctx, i, b.written)
}

func (b *bench) patchPod(ctx context.Context, i, version int) error {
	pod := workload.NewPod(i % b.pods)
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"rollout":"r%d"}}}`, version)
	if _, err := b.admin.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot update pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// frame returns a pod's event in its own chunk, as in a watch.
func (b *bench) frame(ctx context.Context) ([]byte, error) {
	rv, err := b.resourceVersion(ctx)
	if err != nil {
		return nil, err
	}
	c, err := b.secure.proxy.dial(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.send(request{path: "/api/v1/pods?watch=1&resourceVersion=" + rv}); err != nil {
		return nil, err
	}
	if err := b.updatePod(ctx, 0); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(httputil.NewChunkedReader(c.from)).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("cannot read an event: %w", err)
	}
	if !json.Valid(line) {
		return nil, fmt.Errorf("%q is no event", line)
	}
	frame := fmt.Appendf(nil, "%x\r\n", len(line))
	return append(append(frame, line...), "\r\n"...), nil
}
