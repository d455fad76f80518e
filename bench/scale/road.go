package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// roads are the names of the roads.
var roads = []string{"direct", "watchproxy", "replicas"}

// road is a way to the apiserver.
type road struct {
	name     string
	url      string
	ca       []byte // PEM
	proxies  []*cluster.Proxy
	balancer *cluster.Relay // over TCP, to each proxy in turn; nil for one proxy
}

// open starts the proxies of a road.
func (w *world) open(ctx context.Context, name string) (r *road, err error) {
	r = &road{name: name, url: w.api.URL, ca: w.api.CA}
	for range slices.Index(roads, name) {
		proxy, err := cluster.StartProxy(ctx, cluster.ProxyOptions{
			Kubeconfig: w.api.Kubeconfig, Binary: w.watchproxy, TLS: true, Args: []string{"--authentication=delegated"},
		})
		if err != nil {
			return r, err
		}
		r.proxies = append(r.proxies, proxy)
		r.ca = append(r.ca, proxy.CA...)
		r.url = proxy.URL
	}
	if len(r.proxies) > 1 {
		var connections atomic.Int64
		r.balancer, err = cluster.StartRelay(func() string {
			return r.proxies[int(connections.Add(1))%len(r.proxies)].Address()
		})
		if err != nil {
			return r, err
		}
		r.url = "https://" + r.balancer.Address()
	}
	return r, nil
}

// config is a client's configuration without credentials.
func (r *road) config() *rest.Config {
	return &rest.Config{Host: r.url, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: r.ca}}
}

func (r *road) close() error {
	var errs []error
	if r.balancer != nil {
		r.balancer.Close()
	}
	for _, p := range r.proxies {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
