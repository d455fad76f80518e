package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/bench/command"
)

// runLimit limits the whole run.
const runLimit = time.Hour

// options has the values of the flags.
type options struct {
	pods       int
	only       string
	results    string
	watchproxy string
	growth     []int
	herds      []int
	ingest     bool
	recent     bool
	noLedger   bool
}

func main() {
	command.Run(newCommand())
}

func newCommand() *cobra.Command {
	var o options
	cmd := command.New("bench-load", "Measure what reads cost at kube-apiserver, through watchproxy, and at a floor",
		`Starts kube-apiserver with etcd, fills it with pods, starts watchproxy and nginx, and
measures the processor time that each server takes for the same reads. The table goes
to standard output, progress to standard error.`,
		o.validate, o.run)
	flags := cmd.Flags()
	flags.IntVar(&o.pods, "pods", 10_000, "`PODS` that there are, of 4.5 KB of JSON each")
	flags.StringVar(&o.only, "only", "", "measure only the groups of scenarios whose names match a `REGEXP`")
	flags.IntSliceVar(&o.growth, "growth", nil, "`SIZES` of the collection, ascending, to measure the proxy alone at instead of all servers at one size")
	flags.IntSliceVar(&o.herds, "herds", nil, "`INFORMERS` of each herd, to measure instead how long informers take to sync, alone and in herds")
	flags.BoolVar(&o.ingest, "ingest", false, "measure instead how long a cold proxy takes to have all pods")
	flags.BoolVar(&o.recent, "recent", false, "measure instead how long lists of the most recent state take while others write")
	flags.BoolVar(&o.noLedger, "no-ledger", false, "have the proxies keep no ledger of what is written to other resources")
	flags.StringVar(&o.results, "results", "", "`DIR` that the report is also written to: load.txt, load.json; or growth.*, ingest.*, or the only group's name")
	command.ProxyFlag(cmd, &o.watchproxy)
	cmd.AddCommand(newFloorCommand(), newGatewayCommand(), newNodesCommand())
	return cmd
}

func (o *options) validate() error {
	var errs []error
	if o.pods < 1000 {
		errs = append(errs, fmt.Errorf("--pods=%d: must be at least 1,000", o.pods))
	}
	if _, err := regexp.Compile(o.only); err != nil {
		errs = append(errs, fmt.Errorf("--only: %w", err))
	}
	if o.ingest && (len(o.growth) > 0 || o.only != "") {
		errs = append(errs, errors.New("--ingest: measures nothing else, leave out --growth and --only"))
	}
	if !slices.IsSorted(o.growth) || len(o.growth) > 0 && o.growth[0] < 1 {
		errs = append(errs, fmt.Errorf("--growth=%v: must be ascending sizes", o.growth))
	}
	if len(o.herds) > 0 && slices.Min(o.herds) < 1 {
		errs = append(errs, fmt.Errorf("--herds=%v: must be at least 1", o.herds))
	}
	if _, err := os.Stat(o.watchproxy); err != nil {
		errs = append(errs, fmt.Errorf("--watchproxy: %w (make build)", err))
	}
	return errors.Join(errs...)
}

// plainGroup matches a regular expression for one group.
var plainGroup = regexp.MustCompile(`^\^?[a-z0-9-]+\$?$`)

// name returns the report's name.
func (o *options) name() string {
	switch {
	case len(o.growth) > 0:
		return "growth"
	case len(o.herds) > 0:
		return "sync"
	case o.ingest:
		return "ingest"
	case o.recent && o.noLedger:
		return "recent-no-ledger"
	case o.recent:
		return "recent"
	case o.only == "":
		return "load"
	case plainGroup.MatchString(o.only):
		return strings.Trim(o.only, "^$")
	}
	return "some" // groups do not replace the report of all of them
}

// run prints the report even if some measurements fail.
func (o *options) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("not finished after %v", runLimit))
	defer cancel()
	r, err := measure(ctx, o)
	r.print(os.Stdout)
	if o.results != "" {
		err = errors.Join(err, r.write(o.results, o.name()))
	}
	return err
}
