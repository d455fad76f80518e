package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// reads has clients that send requests one after another.
func (b *bench) reads(clients int, at road, r request) func(context.Context, *server) (sample, error) {
	return func(ctx context.Context, s *server) (got sample, err error) {
		if r.pages {
			if r.paths, err = b.continued(ctx, r.paths[0]); err != nil {
				return got, err
			}
		}
		if s.name == floor && !r.forwarded {
			if err := b.publish(ctx, s, at, r); err != nil {
				return got, err
			}
		}
		own := make([]*http.Client, clients)
		for i := range own {
			own[i] = s.client(at)
			defer own[i].CloseIdleConnections()
		}
		return b.repeat(ctx, s, clients, func(ctx context.Context, client, turn int) error {
			return s.ask(ctx, own[client], at, r, turn)
		})
	}
}

// repeat has clients do their work again and again for a turn, and at least once. Before that, each
// does it once: this makes the connections and fills the caches.
func (b *bench) repeat(
	ctx context.Context, s *server, clients int, do func(ctx context.Context, client, turn int) error,
) (got sample, err error) {
	err = workload.Parallel(ctx, clients, clients, func(ctx context.Context, i int) error { return do(ctx, i, i) })
	if err != nil {
		return got, err
	}
	var mu sync.Mutex
	var ms []float64
	got, err = b.during(ctx, s, func(ctx context.Context) (units int, err error) {
		end := time.Now().Add(b.each)
		err = workload.Parallel(ctx, clients, clients, func(ctx context.Context, i int) error {
			for turn := i; turn == i || time.Now().Before(end); turn++ {
				began := time.Now()
				if err := do(ctx, i, turn); err != nil {
					return err
				}
				mu.Lock()
				ms = append(ms, time.Since(began).Seconds()*1e3)
				mu.Unlock()
			}
			return nil
		})
		return len(ms), err
	})
	got.ms = ms
	return got, err
}

// during measures what a server spends while do runs. do returns its units of work.
func (b *bench) during(ctx context.Context, s *server, do func(context.Context) (units int, err error)) (got sample, err error) {
	sentBefore, err := b.sent(ctx, s)
	if err != nil {
		return got, err
	}
	bytesBefore := received.Load()
	cpuBefore, err := s.process.CPU()
	if err != nil {
		return got, err
	}
	if got.units, err = do(ctx); err != nil {
		return got, err
	}
	after, err := s.process.CPU()
	if err != nil {
		return got, err
	}
	got.cpu, got.bytes = after-cpuBefore, received.Load()-bytesBefore
	sent, err := b.sent(ctx, s)
	got.upstream = sent - sentBefore
	return got, err
}

// sent counts the requests that a proxy has sent to the apiserver, except those of its ledger, which
// has a watch of each resource from the first reader on.
func (b *bench) sent(ctx context.Context, s *server) (float64, error) {
	if s.proxy == nil || s.name == floor {
		return 0, nil
	}
	m, err := s.proxy.Metrics(ctx)
	feeds := m.Sum("watchproxy_feed_requests_total") - m.Sum("watchproxy_feed_requests_total", `verb="ledger"`)
	return feeds + m.Sum("watchproxy_requests_total", `source="upstream"`), err
}

const (
	protobuf = "application/vnd.kubernetes.protobuf"
	table    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	// withState is an informer's query for the current state of a collection and then its events.
	withState = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	// stateEnds is in the bookmark that ends the state.
	stateEnds = "k8s.io/initial-events-end"
)

// state reads a watch to the end of its state, without decoding it.
func state(from io.Reader) error {
	buf, kept := make([]byte, 64<<10), 0
	for {
		n, err := from.Read(buf[kept:])
		if bytes.Contains(buf[:kept+n], []byte(stateEnds)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("before the end of the state: %w", err)
		}
		kept = copy(buf, buf[max(0, kept+n-len(stateEnds)):kept+n])
	}
}

// decodePods, decodeTable and decodeState decode as clients do.
func decodePods(from io.Reader) error { return json.NewDecoder(from).Decode(&corev1.PodList{}) }

func decodeTable(from io.Reader) error { return json.NewDecoder(from).Decode(&metav1.Table{}) }

func decodeState(from io.Reader) error {
	const buffer = 4 << 10
	for events := json.NewDecoder(bufio.NewReaderSize(from, buffer)); ; {
		var event struct {
			Type   string
			Object corev1.Pod
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("before the end of the state: %w", err)
		}
		if event.Type == "BOOKMARK" && event.Object.Annotations[stateEnds] != "" {
			return nil
		}
	}
}

// publish gives the floor the proxy's responses.
func (b *bench) publish(ctx context.Context, to *server, at road, r request) error {
	for i := range r.paths {
		one := r
		one.paths = r.paths[i : i+1]
		encoding, body, err := b.ours.once(ctx, at, one)
		if err != nil {
			return err
		}
		one.method, one.body = http.MethodPut, encoding+"\n"+string(body)
		if _, _, err := to.once(ctx, road{http1: at.http1, gzip: at.gzip}, one); err != nil {
			return err
		}
	}
	return nil
}

// continued returns the paths of all pages of a list. They hold until the apiserver compacts etcd.
func (b *bench) continued(ctx context.Context, first string) (paths []string, err error) {
	for path := first; ; {
		paths = append(paths, path)
		_, body, err := b.direct.once(ctx, road{}, request{paths: []string{path}})
		if err != nil {
			return nil, err
		}
		next := gjson.GetBytes(body, "metadata.continue").Str
		if next == "" {
			return paths, nil
		}
		path = first + "&continue=" + url.QueryEscape(next)
	}
}
