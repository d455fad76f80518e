package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	// tierDepth is the number of proxies in a chain.
	tierDepth = 3
	// tierLimit limits how long the events of the other writes are watched.
	tierLimit = time.Minute
)

// tier tells how much later an event arrives if one more proxy stands between the apiserver and the
// watch.
type tier struct {
	Depth  int   `json:"depth"`
	Delays times `json:"addedMilliseconds"` // after the event came to a watch one tier below
}

// tiers watches the leases at the apiserver and at every tier during the writes, and compares the
// times of the events.
func (b *bench) tiers(ctx context.Context) (all []tier, err error) {
	b.say("%d tiers", tierDepth)
	proxies, err := b.stack(ctx)
	defer func() {
		for _, p := range slices.Backward(proxies) {
			err = errors.Join(err, p.Close())
		}
	}()
	if err != nil {
		return nil, err
	}
	ways := []*rest.Config{b.api.RESTConfig()}
	for _, p := range proxies {
		ways = append(ways, p.RESTConfig())
	}
	seen, err := arrivals(ctx, ways, b.tierEvents)
	if err != nil {
		return nil, err
	}
	for depth := 1; depth < len(ways); depth++ {
		t := tier{Depth: depth}
		for rv, at := range seen[depth] {
			if below, ok := seen[depth-1][rv]; ok {
				t.Delays = append(t.Delays, at.Sub(below))
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// stack starts the proxies, the first in front of the apiserver.
func (b *bench) stack(ctx context.Context) (proxies []*cluster.Proxy, err error) {
	kubeconfig := b.api.Kubeconfig
	for range tierDepth {
		p, err := cluster.StartProxy(ctx, cluster.ProxyOptions{Kubeconfig: kubeconfig, Binary: b.watchproxy})
		if err != nil {
			return proxies, err
		}
		proxies = append(proxies, p)
		kubeconfig = filepath.Join(b.api.Dir, "tier.kubeconfig")
		if err := p.WriteKubeconfig(kubeconfig); err != nil {
			return proxies, err
		}
	}
	return proxies, nil
}

// arrivals runs several watches concurrently until each has n events. It returns the time of each
// event.
func arrivals(ctx context.Context, ways []*rest.Config, n int) ([]map[string]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, tierLimit)
	defer cancel()
	seen := make([]map[string]time.Time, len(ways))
	errs := make([]error, len(ways))
	var watches sync.WaitGroup
	for i, way := range ways {
		watches.Go(func() { seen[i], errs[i] = arrivalsAt(ctx, way, n) })
	}
	watches.Wait()
	return seen, errors.Join(errs...)
}

func arrivalsAt(ctx context.Context, way *rest.Config, n int) (map[string]time.Time, error) {
	c := collection{gvr: coordinationv1.SchemeGroupVersion.WithResource("leases")}
	connection, err := connect(way)
	if err != nil {
		return nil, err
	}
	defer connection.close()
	body, err := c.watch(ctx, way.Host, connection.client)
	if err != nil {
		return nil, fmt.Errorf("watch of leases at %s: %w", way.Host, err)
	}
	defer body.Close() //nolint:errcheck // the connection is closed, too
	r := bufio.NewReader(body)
	if _, err := countInitial(r); err != nil {
		return nil, fmt.Errorf("watch of leases at %s: %w", way.Host, err)
	}
	seen := map[string]time.Time{}
	for len(seen) < n {
		line, err := r.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return seen, fmt.Errorf("watch of leases at %s: %w", way.Host, err)
		}
		seen[gjson.GetBytes(line, "object.metadata.resourceVersion").Str] = time.Now()
	}
	return seen, nil
}

func tiersTable(rows []tier) *workload.Table {
	t := &workload.Table{Left: 1, Rows: [][]string{{"TIER", "EVENTS", "MEDIAN", "P99", "WORST"}}}
	for _, r := range rows {
		t.Add(strconv.Itoa(r.Depth), strconv.Itoa(len(r.Delays)), precisely(r.Delays.median()), precisely(r.Delays.quantile(.99)), precisely(r.Delays.worst()))
	}
	return t
}

func precisely(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
