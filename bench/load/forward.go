package main

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// forward asks for what the proxy does not answer itself, in turn at both.
func (b *bench) forward(ctx context.Context) error {
	pod := workload.NewPod(0)
	for _, f := range []struct {
		name string
		most float64 // ms that the proxy should add
		request
	}{
		{"forwarded get", 0.3, request{path: "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name}},
		{"forwarded create, dry run", 0, request{
			path: "/api/v1/namespaces/default/configmaps?dryRun=All", method: http.MethodPost,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bench"},"data":{"a":"b"}}`,
		}},
	} {
		const times = 1000
		took := map[*server][]float64{}
		servers := []*server{b.direct, b.secure.proxy}
		for _, s := range servers {
			c, err := s.dial(ctx, 64<<10)
			if err != nil {
				return err
			}
			defer c.close()
			for range times {
				began := time.Now()
				resp, err := c.send(f.request)
				if err != nil {
					return err
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					return err
				}
				took[s] = append(took[s], time.Since(began).Seconds()*1000)
			}
		}
		median := func(s *server) float64 {
			slices.Sort(took[s])
			return took[s][times/2]
		}
		direct, proxied := median(b.direct), median(b.secure.proxy)
		b.add(row{Scenario: f.name + ": p50", Clients: 1, Unit: "ms", Value: map[string]float64{kubeAPIServer: direct, ours: proxied}})
		b.add(row{Scenario: f.name + ": added", Clients: 1, Unit: "ms", Target: target{AtMost: f.most}, Value: map[string]float64{ours: proxied - direct}})
	}
	return nil
}
