package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const kib = 1 << 10

// resident returns a server's memory. A proxy first collects its garbage, on request.
func (b *bench) resident(ctx context.Context, s *server) (int64, error) {
	const settle = 3 * time.Second
	if s.name == ours {
		for range 2 { // the second collection frees objects with finalizers
			if _, err := b.adminGet(ctx, s, "/debug/pprof/heap?gc=1"); err != nil {
				return 0, err
			}
		}
	}
	time.Sleep(settle)
	rss, _, err := cluster.MemoryOf(s.pid)
	return rss, err
}

// adminGet sends a request to a proxy's admin address.
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
	const own, shared = "HTTP/2, a connection each", "HTTP/2, 100 on a connection"
	for _, way := range []struct {
		name   string
		server *server
		atMost float64
	}{
		{"HTTP/1.1 without TLS", b.plain.proxy, 20},
		{"HTTP/1.1", b.secure.proxy, 36},
		{own, b.secure.proxy.over2(1), 20},
		{shared, b.secure.proxy.over2(100), 3},
		{shared, b.direct.over2(100), 0},
		{own, b.direct.over2(1), 0},
		{"HTTP/1.1", b.direct, 0},
	} {
		rv, err := b.resourceVersion(ctx)
		if err != nil {
			return err
		}
		path := "/api/v1/pods?watch=1&resourceVersion=" + rv
		if _, err := way.server.get(ctx, request{path: "/api/v1/pods?resourceVersion=0"}); err != nil { // fills the cache
			return err
		}
		before, err := b.resident(ctx, way.server)
		if err != nil {
			return err
		}
		c, err := way.server.watch(ctx, watchers, func(int) string { return path })
		if err != nil {
			return err
		}
		after, err := b.resident(ctx, way.server)
		c.close()
		if err != nil {
			return err
		}
		b.add(row{
			Scenario: "idle watch, " + way.name, Clients: watchers, Unit: "KiB", Target: target{AtMost: way.atMost},
			Value: map[string]float64{way.server.name: float64(after-before) / watchers / kib},
		})
	}
	return b.multitude(ctx)
}
