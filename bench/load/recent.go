package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// recentFor is the time for which each row is measured, after recentSettle.
const (
	recentFor    = 3 * time.Second
	recentSettle = time.Second
	// ledgerSettle is the time in which the proxy must find the resources of the other writes.
	ledgerSettle = 15 * time.Second
	// foreignObjects is the number of leases, and of config maps, for the other writes.
	foreignObjects = 50
)

// recent measures lists of the most recent state: of one namespace by a label, without a
// resourceVersion. Meanwhile leases and config maps are written, but not the listed collection.
// Each client has its own connection.
func (b *bench) recent(ctx context.Context) error {
	if err := b.makeForeign(ctx); err != nil {
		return err
	}
	pod := workload.NewPod(0)
	path := "/api/v1/namespaces/" + pod.Namespace + "/pods?labelSelector=" + url.QueryEscape("app.kubernetes.io/name="+pod.Labels["app.kubernetes.io/name"])
	for _, rate := range []int{0, 5, 20, 200} {
		err := b.whileForeign(ctx, rate, true, func(ctx context.Context) error {
			if err := b.measureQuiet(ctx); err != nil {
				return err
			}
			if rate > 0 { // wait until the proxy keeps the ledger
				if _, err := b.secure.proxy.recentReads(ctx, path, 1, true, ledgerSettle); err != nil {
					return err
				}
			}
			return b.recentRows(ctx, fmt.Sprintf("most recent list, %d writes/s to other resources", rate), path, 1, 4, 16)
		})
		if err != nil {
			return err
		}
	}
	const own = 100
	return workload.During(ctx, own, seedLimit, func(ctx context.Context, i int) error { return b.patchPod(ctx, i, i) }, func(ctx context.Context) error {
		if err := b.measureQuiet(ctx); err != nil {
			return err
		}
		return b.recentRows(ctx, fmt.Sprintf("most recent list, %d writes/s to the collection", own), path, 1, 4)
	})
}

func (b *bench) recentRows(ctx context.Context, name, path string, clients ...int) error {
	for _, http2 := range []bool{false, true} {
		for _, n := range clients {
			if err := b.recentRow(ctx, name, path, n, http2); err != nil {
				return err
			}
		}
	}
	return nil
}

// recentRow measures both servers in turn.
func (b *bench) recentRow(ctx context.Context, name, path string, clients int, http2 bool) error {
	if http2 {
		name += ", HTTP/2"
	} else {
		name += ", HTTP/1.1"
	}
	p50, p99, most, upstream := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, s := range []*server{b.direct, b.secure.proxy} {
		if _, err := s.recentReads(ctx, path, clients, http2, recentSettle); err != nil {
			return err
		}
		before, err := b.direct.cpu()
		if err != nil {
			return err
		}
		took, err := s.recentReads(ctx, path, clients, http2, recentFor)
		if err != nil {
			return err
		}
		after, err := b.direct.cpu()
		if err != nil {
			return err
		}
		p50[s.name], p99[s.name], most[s.name] = percentiles(took)
		reads := max(after-before-time.Duration(b.quiet*float64(recentFor)), 0)
		upstream[s.name] = reads.Seconds() * 1e3 / float64(len(took))
	}
	for _, v := range []struct {
		what  string
		value map[string]float64
	}{{"ms, p50", p50}, {"ms, p99", p99}, {"ms, max", most}, {"ms of upstream's processor time, less its idle load", upstream}} {
		b.add(row{Scenario: name + ": " + v.what, Clients: clients, Unit: "list", Value: v.value})
	}
	return nil
}

// measureQuiet measures upstream's use of a processor without readers.
func (b *bench) measureQuiet(ctx context.Context) error {
	before, err := b.direct.cpu()
	if err != nil {
		return err
	}
	cluster.Pause(ctx, recentFor)
	after, err := b.direct.cpu()
	b.quiet = (after - before).Seconds() / recentFor.Seconds()
	return errors.Join(context.Cause(ctx), err)
}

// recentReads reads for a while, and returns the duration of each read in milliseconds.
func (s *server) recentReads(ctx context.Context, path string, clients int, http2 bool, during time.Duration) (took []float64, err error) {
	var mu sync.Mutex
	end := time.Now().Add(during)
	err = workload.Parallel(ctx, clients, clients, func(ctx context.Context, _ int) error {
		client := s.httpClient(http2)
		defer client.CloseIdleConnections()
		for time.Now().Before(end) {
			began := time.Now()
			if err := s.fetch(ctx, client, path); err != nil {
				return err
			}
			mu.Lock()
			took = append(took, float64(time.Since(began).Microseconds())/1e3)
			mu.Unlock()
		}
		return nil
	})
	return took, err
}

func (s *server) httpClient(http2 bool) *http.Client {
	config := s.tls.Clone()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	config.NextProtos = nil
	config.MinVersion = tls.VersionTLS13
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, Protocols: &protocols}, Timeout: requestLimit}
}

func (s *server) fetch(ctx context.Context, client *http.Client, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String()+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or does not matter
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", s.name, path, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// makeForeign creates the objects of the other writes.
func (b *bench) makeForeign(ctx context.Context) error {
	return workload.Parallel(ctx, foreignObjects, seedLimit, func(ctx context.Context, i int) error {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("foreign-%d", i), Namespace: metav1.NamespaceDefault}
		if _, err := b.admin.CoordinationV1().Leases(meta.Namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := b.admin.CoreV1().ConfigMaps(meta.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
		return err
	})
}

// whileForeign runs do during writes to leases. If configMaps is true, config maps are also
// written.
func (b *bench) whileForeign(ctx context.Context, rate int, configMaps bool, do func(context.Context) error) error {
	if rate == 0 {
		return do(ctx)
	}
	write := func(ctx context.Context, i int) error {
		name, patch := fmt.Sprintf("foreign-%d", i/2%foreignObjects), fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, i)
		const merge = "application/merge-patch+json"
		if i%2 == 0 || !configMaps {
			_, err := b.admin.CoordinationV1().Leases(metav1.NamespaceDefault).Patch(ctx, name, merge, patch, metav1.PatchOptions{})
			return err
		}
		_, err := b.admin.CoreV1().ConfigMaps(metav1.NamespaceDefault).Patch(ctx, name, merge, patch, metav1.PatchOptions{})
		return err
	}
	return workload.During(ctx, rate, seedLimit, write, do)
}
