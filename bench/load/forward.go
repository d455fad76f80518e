package main

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// forward measures requests that the proxy forwards. The floor is nginx, which forwards all bytes
// without parsing them. A second floor is a minimal program in Go.
func (b *bench) forward(ctx context.Context) error {
	gateway, err := b.startGateway()
	if err != nil {
		return err
	}
	defer gateway.close() //nolint:errcheck // it is killed
	gateway.name = "gateway"
	pod := workload.NewPod(0)
	get := request{path: "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name}
	create := request{
		path: "/api/v1/namespaces/default/configmaps?dryRun=All", method: http.MethodPost,
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bench"},"data":{"a":"b"}}`,
	}
	all := []*server{b.direct, b.secure.proxy, b.forwarder, gateway.server}
	// The forwarder is missing, because it speaks only HTTP/1.1.
	two := []*server{b.direct.over2(1), b.secure.proxy.over2(1), gateway.over2(1)}
	for _, f := range []struct {
		name string
		request
		servers []*server
	}{
		{"forwarded get", get, all},
		{"forwarded create, dry run", create, all},
		{"forwarded get, HTTP/2", get, two},
		{"forwarded create, dry run, HTTP/2", create, two},
	} {
		const rounds, times = 10, 200
		took := map[string][]float64{}
		for range rounds {
			for _, s := range f.servers {
				ms, err := s.times(ctx, f.request, times)
				if err != nil {
					return err
				}
				took[s.name] = append(took[s.name], ms...)
			}
		}
		p50, added := map[string]float64{}, map[string]float64{}
		for name, ms := range took {
			slices.Sort(ms)
			p50[name] = ms[len(ms)/2]
		}
		for name := range took {
			added[name] = p50[name] - p50[kubeAPIServer]
		}
		delete(added, kubeAPIServer)
		b.add(row{Scenario: f.name + ": p50", Clients: 1, Unit: "ms", Value: p50})
		least := added[gateway.name]
		b.add(row{
			Scenario: f.name + ": added latency", Clients: 1, Unit: "ms",
			Target: target{AtMost: least}, Value: added,
		})
		b.add(row{
			Scenario: f.name + ": latency added by Go's ReverseProxy", Clients: 1, Unit: "ms",
			Value: map[string]float64{theFloor: least},
		})
	}
	return nil
}

// times sends requests one after another over a connection, and returns the duration of each in
// milliseconds.
func (s *server) times(ctx context.Context, r request, n int) (ms []float64, err error) {
	c, err := s.dial(ctx, 64<<10)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for range n {
		began := time.Now()
		if _, err := c.ask(r); err != nil {
			return nil, err
		}
		ms = append(ms, time.Since(began).Seconds()*1000)
	}
	return ms, nil
}
