// Command sync measures how long client-go's informers take until they have synced: at the
// apiserver, through watchproxy, and in herds that start together behind a proxy with empty caches.
// `make bench-sync` runs this command.
//
// The informers sync as client-go 0.36 does by default: with a watch that first asks for the most
// recent state (sendInitialEvents without a resourceVersion). The proxy answers this watch from its
// cache, but first has to prove that the cache is up to date. The bench writes to other resources
// all the time. So etcd's revision is always ahead of the watch of a quiet resource, and that watch
// alone is not a proof.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/features"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/command"
)

// runLimit limits the whole run. On an idle machine with two cores, a run takes about three
// minutes.
const runLimit = 20 * time.Minute

// options are the flags.
type options struct {
	informers    int // per row: so many at the apiserver, and so many through the proxy
	small, large int // objects of the quiet collections
	busy         int // objects of the busy collection
	updates      int // of busy objects, per second
	writes       int // to other resources, per second
	tierEvents   int
	herds        []int // number of informers of each herd
	json         string
	watchproxy   string // path of the binary
}

func main() {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	command.Run(newCommand())
}

func newCommand() *cobra.Command {
	var o options
	cmd := command.New("bench-sync", "Measure how long informers take to sync",
		`Starts kube-apiserver with etcd, fills it, starts watchproxy, and measures how long
client-go informers take to sync: alone, at the apiserver and through the proxy in
turn, and in herds through a proxy that has nothing cached. Tables go to standard
output, progress to standard error.`,
		o.validate, o.run)
	flags := cmd.Flags()
	flags.IntVar(&o.informers, "informers", 7, "number of `INFORMERS` that sync one after the other, at the apiserver and as many through the proxy")
	flags.IntVar(&o.small, "small", 100, "`OBJECTS` of the small quiet collection")
	flags.IntVar(&o.large, "large", 10_000, "`OBJECTS` of the large quiet collection")
	flags.IntVar(&o.busy, "busy", 10_000, "`OBJECTS` of the busy collection")
	flags.IntVar(&o.updates, "updates", 200, "`UPDATES` per second of the busy collection")
	flags.IntVar(&o.writes, "writes", 20, "`WRITES` per second to other resources")
	flags.IntSliceVar(&o.herds, "herds", []int{10, 100, 1000}, "`INFORMERS` of each herd")
	flags.IntVar(&o.tierEvents, "tier-events", 200, "`EVENTS` to measure for tiers of proxies")
	flags.StringVar(&o.json, "json", "", "`FILE` that the tables are also written to, as JSON")
	command.ProxyFlag(cmd, &o.watchproxy)
	return cmd
}

func (o *options) validate() error {
	var errs []error
	atLeastOne := func(flag string, value int) {
		if value < 1 {
			errs = append(errs, fmt.Errorf("--%s=%d: must be at least 1", flag, value))
		}
	}
	atLeastOne("informers", o.informers)
	atLeastOne("small", o.small)
	atLeastOne("large", o.large)
	atLeastOne("busy", o.busy)
	atLeastOne("updates", o.updates)
	atLeastOne("writes", o.writes)
	atLeastOne("tier-events", o.tierEvents)
	for _, n := range o.herds {
		atLeastOne("herds", n)
	}
	if _, err := os.Stat(o.watchproxy); err != nil {
		errs = append(errs, fmt.Errorf("--watchproxy: %w (make build)", err))
	}
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		errs = append(errs, errors.New("client-go's feature WatchListClient is switched off in the environment"))
	}
	return errors.Join(errs...)
}

// run prints the report even if some measurements fail.
func (o *options) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("not finished after %v", runLimit))
	defer cancel()
	r, err := measure(ctx, *o, os.Stderr)
	r.print(os.Stdout)
	if o.json != "" {
		err = errors.Join(err, r.write(o.json))
	}
	return err
}

func (r *report) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
