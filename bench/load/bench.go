package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	writeLimit = 16 // writes at a time
	// runLimit limits the whole run.
	runLimit = 2 * time.Hour
)

// bench has all running servers.
type bench struct {
	*options
	api     *cluster.APIServer
	admin   *kubernetes.Clientset
	proxies []*cluster.Proxy

	direct, ours *server
	before       *server // nil without --before
	floor        *server
	written      int // updates of pods
}

func measure(ctx context.Context, o *options, r *report) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("not finished after %v", runLimit))
	defer cancel()
	b := &bench{options: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	wanted := regexp.MustCompile(o.only)
	for _, m := range b.measurements() {
		if !wanted.MatchString(m.group + ": " + m.name) {
			continue
		}
		samples := map[string]sample{}
		// The servers take turns, because the machine's speed changes from second to second.
		for range b.rounds {
			for _, s := range b.servers(m) {
				got, err := m.measure(ctx, s)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", m.group, m.name, err)
				}
				samples[s.name] = samples[s.name].and(got)
			}
		}
		r.results = append(r.results, result{m, samples})
		for _, row := range r.results[len(r.results)-1].rows() {
			say("  %s", strings.Join(row, " | "))
		}
	}
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// servers returns the servers of a measurement.
func (b *bench) servers(m measurement) (all []*server) {
	if !m.proxies {
		all = append(all, b.direct)
	}
	if b.before != nil {
		all = append(all, b.before)
	}
	all = append(all, b.ours)
	if m.floor {
		all = append(all, b.floor)
	}
	return all
}

// start starts the servers and fills them.
func (b *bench) start(ctx context.Context) (err error) {
	say("starting kube-apiserver and etcd")
	if b.api, err = cluster.StartAPIServer(ctx, cluster.Options{}); err != nil {
		return err
	}
	b.direct = &server{name: kubeAPIServer, url: b.api.URL, watches: b.api.URL, ca: b.api.CA, token: b.api.Token, process: b.api}
	if b.admin, err = kubernetes.NewForConfig(b.api.RESTConfig()); err != nil {
		return err
	}
	say("making %d pods", b.pods)
	if err := workload.CreateNamespaces(ctx, b.admin); err != nil {
		return err
	}
	if err := workload.Parallel(ctx, b.pods, writeLimit, func(ctx context.Context, i int) error {
		return workload.CreatePod(ctx, b.admin, workload.NewPod(i))
	}); err != nil {
		return err
	}
	say("starting the proxies and the floor")
	if b.ours, err = b.startProxy(ctx, ours, b.watchproxy); err != nil {
		return err
	}
	if b.beforeFile != "" {
		if b.before, err = b.startProxy(ctx, before, b.beforeFile); err != nil {
			return err
		}
	}
	b.floor, err = b.startFloor(ctx)
	return err
}

// startProxy starts a proxy with TLS, authentication and authorization. The first request for a
// collection waits until the collection is cached, even a large one.
func (b *bench) startProxy(ctx context.Context, name, binary string) (*server, error) {
	return b.startServer(ctx, name, cluster.ProxyOptions{
		Kubeconfig: b.api.Kubeconfig, Binary: binary, TLS: true, Args: []string{"--authentication=delegated"},
		Settings: "limits: {maxWatchesPerIdentity: 200000}\ncache: {syncTimeout: 2m}\n",
	})
}

func (b *bench) startFloor(ctx context.Context) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s, err := b.startServer(ctx, floor, cluster.ProxyOptions{Kubeconfig: b.api.Kubeconfig, Binary: self, TLS: true})
	if err == nil {
		s.watches = s.proxy.AdminURL
	}
	return s, err
}

func (b *bench) startServer(ctx context.Context, name string, o cluster.ProxyOptions) (*server, error) {
	p, err := cluster.StartProxy(ctx, o)
	if err != nil {
		return nil, err
	}
	b.proxies = append(b.proxies, p)
	return &server{name: name, url: p.URL, watches: p.URL, ca: p.CA, token: b.api.Token, process: p, proxy: p, binary: o.Binary}, nil
}

func (b *bench) close() (err error) {
	for _, p := range b.proxies {
		if b.floor != nil && p == b.floor.proxy {
			p.Kill()
		}
		err = errors.Join(err, p.Close())
	}
	if b.api != nil {
		err = errors.Join(err, b.api.Close())
	}
	return err
}
