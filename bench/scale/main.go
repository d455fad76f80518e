// Command scale measures a cluster of the size that Kubernetes is tested for, in the terms of SIG
// Scalability: directly, through watchproxy, and through two replicas of it. `make scale` runs it.
//
// There is one kube-apiserver with etcd. Nodes are kwok's. The crowd is kubelets, controllers,
// dashboards and CI jobs with client-go and kubectl, over TLS and HTTP/2, each with its own
// certificate and connection. They travel each road with the same seed, in episodes: they start,
// work, suffer a storm of restarted kubelets, and restarts of the proxy and of the apiserver.
// Everything runs on one machine, so times depend on how busy its processors are, and are compared
// within one run only.
//
// # Differences from a real cluster
//
// A kubelet watches its pods, its node and all services, and renews its lease; it does not watch
// the ConfigMaps, Secrets, RuntimeClasses and CSIDrivers of its pods. Except in the storm it begins
// from a recent resourceVersion, because 5,000 clients in one process cannot decode 10,000 services
// each. Caches keep names only. No controller runs: ReplicaSets are only named by their pods, and
// the bench itself writes the EndpointSlices of the churn. At most 20 leases are renewed in a
// second: at 5,000 nodes each is renewed after 250 s instead of 10, as by kubelets with a
// nodeLeaseDurationSeconds of 1,000, because two processors cannot carry 500 writes a second beside
// the rest. For the same reason, the crowd opens at most 200 connections in a second, and has one
// processor.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/command"
)

// options are the flags.
type options struct {
	scale            float64
	seed             uint64
	roads            []string
	steady           time.Duration
	out              string
	watchproxy, kwok string // paths of binaries
}

// size is how much there is of everything.
type size struct {
	nodes, podsPerNode, services, custom int
	churn                                int // pods that start, and end, in a second
	controllers, dashboards, jobs        int
	storm                                int // kubelets that start at once
}

// sizeAt returns a part of the thresholds of SIG Scalability
// (kubernetes/community, sig-scalability/configs-and-limits/thresholds.md). There are as many
// namespaces as services.
func sizeAt(scale float64) size {
	part := func(n int) int { return max(1, int(math.Round(float64(n)*scale))) }
	return size{
		nodes: part(5000), podsPerNode: 30, services: part(10_000), custom: part(2000), churn: part(20),
		controllers: 20, dashboards: 10, jobs: 5, storm: part(500),
	}
}

func main() {
	klog.SetLogger(logr.Discard()) // reflectors log each lost connection
	debug.SetMemoryLimit(6 << 30)  // leave the rest to the servers
	var o options
	cmd := command.New("scale", "Measure a cluster of 5,000 nodes directly and through watchproxy",
		`Starts kube-apiserver with etcd, fills it, and lets a crowd of clients work, directly, through
watchproxy and through two replicas of it. Writes results to a directory, progress to
standard error.`,
		o.validate, func(ctx context.Context) error { return run(ctx, &o) })
	flags := cmd.Flags()
	flags.Float64Var(&o.scale, "scale", 1, "the `PART` of 5,000 nodes, 150,000 pods and 10,000 services")
	flags.Uint64Var(&o.seed, "seed", 1, "`SEED` of all choices of the crowd")
	flags.StringSliceVar(&o.roads, "roads", roads, "`ROADS` to travel")
	flags.DurationVar(&o.steady, "steady", 2*time.Minute, "how long the crowd works undisturbed")
	flags.StringVar(&o.out, "out", "", "`DIRECTORY` for the results")
	command.ProxyFlag(cmd, &o.watchproxy)
	flags.StringVar(&o.kwok, "kwok", filepath.Join(cluster.Root(), "bin", "kwok"), "`FILE` to run as kwok")
	command.Run(cmd)
}

func (o *options) validate() error {
	var errs []error
	if !(o.scale > 0 && o.scale <= 1) {
		errs = append(errs, fmt.Errorf("--scale=%v: must be above 0 and at most 1", o.scale))
	}
	for _, name := range o.roads {
		if !slices.Contains(roads, name) {
			errs = append(errs, fmt.Errorf("--roads: %q is none of %s", name, strings.Join(roads, ", ")))
		}
	}
	if o.steady < time.Second {
		errs = append(errs, fmt.Errorf("--steady=%v: must be at least 1s", o.steady))
	}
	if o.out == "" {
		errs = append(errs, errors.New("--out: must name a directory"))
	}
	for _, f := range [][2]string{{"--watchproxy", o.watchproxy}, {"--kwok", o.kwok}} {
		if _, err := os.Stat(f[1]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w (make build bin/kwok)", f[0], err))
		}
	}
	return errors.Join(errs...)
}

// run writes the results of the roads that were travelled even if a later one fails.
func run(ctx context.Context, o *options) (err error) {
	w := &world{size: sizeAt(o.scale), options: o}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.build(ctx); err != nil {
		return err
	}
	found := &results{head: w.head(ctx), json: w.json}
	for _, name := range o.roads {
		var episodes []episode
		episodes, err = w.travel(ctx, name)
		found.add(name, episodes)
		if err != nil {
			break
		}
	}
	return errors.Join(err, found.write(o.out))
}

// say tells the progress.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
