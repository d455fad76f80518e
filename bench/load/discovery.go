package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// aggregated is the Accept header of kubectl 1.37 for discovery.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// sessions measures the requests that kubectl sends with an empty cache directory. The rows compare
// the apiserver's own processor time for direct sessions with its time for sessions through the
// proxy.
func (b *bench) sessions(ctx context.Context) error {
	if err := b.measureQuiet(ctx); err != nil {
		return err
	}
	index, err := b.direct.get(ctx, request{path: "/openapi/v3"})
	if err != nil {
		return err
	}
	pods := gjson.GetBytes(index, "paths.api/v1.serverRelativeURL").Str
	if pods == "" {
		return errors.New("the index of OpenAPI has no api/v1")
	}
	discovery := []request{{path: "/api?timeout=32s", accept: aggregated}, {path: "/apis?timeout=32s", accept: aggregated}}
	explain := append(discovery[:2:2], request{path: "/openapi/v3?timeout=32s", accept: "application/json, */*"}, request{path: pods + "&timeout=32s"})
	for _, session := range []struct {
		name     string
		requests []request
	}{{"kubectl api-resources", discovery}, {"kubectl explain pods", explain}} {
		// A garbage collection of the apiserver costs as much as a thousand sessions through the proxy.
		const rounds = 5
		r := row{Scenario: "apiserver's part of " + session.name, Clients: 1000, Unit: "session", Servers: map[string]spent{}, Target: target{LessThanAPIServer: 20}}
		for range rounds {
			for _, s := range []*server{b.direct, b.secure.proxy} {
				got, err := b.sessionsAt(ctx, s, r.Clients, session.requests)
				if err != nil {
					return fmt.Errorf("%s: %w", session.name, err)
				}
				r.Servers[s.name] = r.Servers[s.name].and(got)
			}
		}
		b.add(r)
	}
	return nil
}

// sessionsAt runs n sessions at the same time, each on its own connection. It returns the
// apiserver's processor time for them, minus its idle load.
func (b *bench) sessionsAt(ctx context.Context, s *server, n int, requests []request) (spent, error) {
	// The apiserver still closes connections and collects garbage of the round before.
	const settling = 3 * time.Second
	time.Sleep(settling)
	began := time.Now()
	before, err := b.direct.cpu()
	if err != nil {
		return spent{}, err
	}
	err = workload.Parallel(ctx, n, n, func(ctx context.Context, _ int) error {
		c, err := s.dial(ctx, readBuffer)
		if err != nil {
			return err
		}
		defer c.close()
		for _, r := range requests {
			if _, err := c.ask(r); err != nil {
				return err
			}
		}
		return nil
	})
	after, failed := b.direct.cpu()
	idle := b.quiet * time.Since(began).Seconds()
	return spent{Units: n, Seconds: (after - before).Seconds() - idle}, errors.Join(err, failed)
}
