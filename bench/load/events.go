package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// eventRate is the number of events in a second.
const eventRate = 10

// events measures the delivery of the same events to many watches. The result excludes the server's
// cost of the writes themselves.
func (b *bench) events(at road) func(context.Context, *server) (sample, error) {
	return func(ctx context.Context, s *server) (got sample, err error) {
		write, first := func(ctx context.Context) error { return b.updatePod(ctx, b.written) }, 0
		if at.gzip {
			write, first = func(ctx context.Context) error { return b.updatePod(ctx, 0) }, ofOnePod
		}
		if s.name == floor {
			if write, err = b.floorEvents(ctx, s); err != nil {
				return got, err
			}
		}
		var acknowledged []time.Time
		writes := func(ctx context.Context) (int, error) {
			acknowledged, err = b.writes(ctx, write)
			return len(acknowledged), err
		}
		alone, err := b.during(ctx, s, writes)
		if err != nil {
			return got, err
		}
		c, err := b.watch(ctx, s, at, b.watches)
		if err != nil {
			return got, err
		}
		defer c.close()
		if err := c.wait(ctx, int64(first*b.watches)); err != nil {
			return got, err
		}
		settle := b.each / 3
		time.Sleep(settle)
		got, err = b.during(ctx, s, func(ctx context.Context) (int, error) {
			if _, err := writes(ctx); err != nil {
				return 0, err
			}
			n := len(acknowledged) * b.watches
			return n, c.wait(ctx, int64(first*b.watches+n))
		})
		got.cpu -= alone.cpu * time.Duration(len(acknowledged)) / time.Duration(max(alone.units, 1))
		c.close()
		if s.name == floor { // which acknowledges an event after its delivery
			return got, err
		}
		for _, times := range c.times {
			times = times[min(first, len(times)):]
			for i, came := range times[:min(len(times), len(acknowledged))] {
				got.ms = append(got.ms, came.Sub(acknowledged[i]).Seconds()*1e3)
			}
		}
		return got, err
	}
}

// writes makes writes one after another, for a turn. It returns the times of the acknowledgements.
func (b *bench) writes(ctx context.Context, write func(context.Context) error) (acknowledged []time.Time, err error) {
	ticker := time.NewTicker(time.Second / eventRate)
	defer ticker.Stop()
	for end := time.Now().Add(b.each); time.Now().Before(end); {
		if err := write(ctx); err != nil {
			return nil, err
		}
		acknowledged = append(acknowledged, time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return acknowledged, nil
}

// updatePod changes a label of the i-th pod. It must not be called concurrently.
func (b *bench) updatePod(ctx context.Context, i int) error {
	b.written++
	pod := workload.NewPod(i % b.pods)
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"rollout":"r%d"}}}`, b.written)
	if _, err := b.admin.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot update pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// floorEvents returns a function that has the floor deliver an event of the proxy.
func (b *bench) floorEvents(ctx context.Context, s *server) (write func(context.Context) error, err error) {
	pods, err := b.fromNow(ctx, road{})
	if err != nil {
		return nil, err
	}
	watcher := b.ours.client(road{})
	defer watcher.CloseIdleConnections()
	watch, err := b.ours.open(ctx, watcher, road{}, pods, 0)
	if err != nil {
		return nil, err
	}
	defer watch.Body.Close() //nolint:errcheck // what was read is what counts
	if err := b.updatePod(ctx, 0); err != nil {
		return nil, err
	}
	event, err := bufio.NewReader(watch.Body).ReadString('\n')
	if err != nil {
		return nil, err
	}
	poster := s.client(road{})
	return func(ctx context.Context) error {
		return s.ask(ctx, poster, road{}, request{paths: []string{eventPath}, method: http.MethodPost, body: event}, 0)
	}, nil
}

// ofOnePod is the number of events at the start of a watch of one pod with the state: the pod, and
// the bookmark that ends the state.
const ofOnePod = 2

// fromNow returns the watch of all pods from now on. For gzip it is a watch of the first pod with the
// state, because kube-apiserver compresses no other watches.
func (b *bench) fromNow(ctx context.Context, at road) (request, error) {
	if at.gzip {
		pod := workload.NewPod(0)
		path := "/api/v1/namespaces/" + pod.Namespace + "/pods?fieldSelector=metadata.name%3D" + pod.Name + "&" + withState
		return request{paths: []string{path}}, nil
	}
	pods, err := b.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return request{}, fmt.Errorf("cannot ask for the resourceVersion: %w", err)
	}
	return request{paths: []string{"/api/v1/pods?watch=1&resourceVersion=" + pods.ResourceVersion}}, nil
}

// crowd is a number of open watches at one server. The k-th event of a watch belongs to the k-th
// write, because all watches receive all events in the same order.
type crowd struct {
	server  *server
	clients []*http.Client
	times   [][]time.Time // when events have arrived, for each watch; read them after close
	got     atomic.Int64  // events of all watches
	lost    atomic.Int64  // watches that ended
	reading sync.WaitGroup
	cancel  context.CancelFunc
}

// watch opens n watches.
func (b *bench) watch(ctx context.Context, s *server, at road, n int) (*crowd, error) {
	pods, err := b.fromNow(ctx, at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	each := max(at.shared, 1)
	c := &crowd{server: s, times: make([][]time.Time, n), clients: make([]*http.Client, (n+each-1)/each), cancel: cancel}
	const parallel = 16
	err = workload.Parallel(ctx, len(c.clients), parallel, func(_ context.Context, i int) error {
		c.clients[i] = s.client(at)
		for k := i * each; k < min((i+1)*each, n); k++ {
			resp, err := s.open(ctx, c.clients[i], at, pods, 0)
			if err != nil {
				return err
			}
			c.reading.Go(func() { c.read(resp, &c.times[k]) })
		}
		return nil
	})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// read counts the events of a watch by their line feeds, without decoding them.
func (c *crowd) read(resp *http.Response, times *[]time.Time) {
	defer resp.Body.Close() //nolint:errcheck // the watch has ended
	const buffer = 16 << 10
	buf := make([]byte, buffer)
	var from io.Reader
	var err error
	for err == nil {
		if from == nil { // the header of gzip comes with the first event
			from, err = plain(resp)
			continue
		}
		var n int
		n, err = from.Read(buf)
		lines := bytes.Count(buf[:n], []byte("\n"))
		now := time.Now()
		for range lines {
			*times = append(*times, now)
		}
		c.got.Add(int64(lines))
	}
	c.lost.Add(1)
}

// wait returns when the crowd has received a number of events in total.
func (c *crowd) wait(ctx context.Context, events int64) error {
	const limit, pause = time.Minute, 5 * time.Millisecond
	for began := time.Now(); c.got.Load() < events; time.Sleep(pause) {
		if lost := c.lost.Load(); lost > 0 {
			return fmt.Errorf("%s: %d of %d watches ended", c.server.name, lost, len(c.times))
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%s: %d of %d events came within %v", c.server.name, c.got.Load(), events, limit)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *crowd) close() {
	c.cancel()
	c.reading.Wait()
	for _, client := range c.clients {
		if client != nil {
			client.CloseIdleConnections()
		}
	}
}
