package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const kib = 1 << 10

// resident returns a server's memory. A proxy collects its garbage first, on request.
func (b *bench) resident(ctx context.Context, s *server) (int64, error) {
	const settle = 3 * time.Second
	if s.name == ours {
		for range 2 { // objects with a finalizer go with the second collection
			if _, err := b.adminGet(ctx, s, "/debug/pprof/heap?gc=1"); err != nil {
				return 0, err
			}
		}
	}
	time.Sleep(settle)
	rss, _, err := cluster.MemoryOf(s.pid)
	return rss, err
}

// adminGet asks a proxy about itself.
func (b *bench) adminGet(ctx context.Context, s *server, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.adminOf(s)+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the proxy about itself: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return body, err
}

// idle measures watches without events.
func (b *bench) idle(ctx context.Context) error {
	const watchers = 5000
	for _, way := range []struct {
		name   string
		server *server
		http2  bool
		atMost float64
	}{
		{"plain", b.plain.proxy, false, 16},
		{"TLS", b.secure.proxy, false, 36},
		{"TLS and HTTP 2", b.secure.proxy, true, 12},
		{"TLS and HTTP 2", b.direct, true, 0},
		{"TLS", b.direct, false, 0},
	} {
		rv, err := b.resourceVersion(ctx)
		if err != nil {
			return err
		}
		path := "/api/v1/pods?watch=1&resourceVersion=" + rv
		if _, err := way.server.get(ctx, request{path: "/api/v1/pods?resourceVersion=0"}); err != nil { // the cache is filled
			return err
		}
		before, err := b.resident(ctx, way.server)
		if err != nil {
			return err
		}
		end, err := openWatches(ctx, way.server, watchers, path, way.http2)
		if err != nil {
			return err
		}
		after, err := b.resident(ctx, way.server)
		if err == nil {
			err = b.heapProfile(ctx, way.server, "idle, "+way.name)
		}
		end()
		if err != nil {
			return err
		}
		b.add(row{
			Scenario: "idle watch, " + way.name, Clients: watchers, Unit: "KiB", Target: target{AtMost: way.atMost},
			Value: map[string]float64{way.server.name: float64(after-before) / watchers / kib},
		})
	}
	return nil
}

// openWatches opens watches and does not read them.
func openWatches(ctx context.Context, s *server, n int, path string, http2 bool) (end func(), err error) {
	if !http2 {
		c, err := s.watch(ctx, n, func(int) string { return path })
		if err != nil {
			return nil, err
		}
		return c.close, nil
	}
	streams := 1000 // of a connection: as many as the server allows
	if s.name == kubeAPIServer {
		streams = 100
	}
	ctx, cancel := context.WithCancel(ctx)
	transports := make([]*http.Transport, (n+streams-1)/streams)
	for i := range transports {
		config := s.tls.Clone()
		config.NextProtos = nil
		var protocols http.Protocols
		protocols.SetHTTP2(true)
		transports[i] = &http.Transport{TLSClientConfig: config, Protocols: &protocols, DisableCompression: true}
	}
	end = func() {
		cancel()
		for _, t := range transports {
			t.CloseIdleConnections()
		}
	}
	const parallel = 16
	err = workload.Parallel(ctx, n, parallel, func(_ context.Context, i int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String()+path, http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+s.token)
		resp, err := transports[i/streams].RoundTrip(req)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", s.name, resp.Status)
		}
		return nil
	})
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}
