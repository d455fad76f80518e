// Command load measures the cost of reads: at kube-apiserver, through watchproxy, through another
// binary of watchproxy, and at a minimal server, the floor. `make bench` runs this command.
//
// All servers run on one machine, in one run, and receive the same requests in turn. The bench
// compares the processor time, user and system, that a server needs for a unit of work
// (proc_pid_stat(5)). Clients run in another process and do not count. They use the road that
// clients take: HTTP/2 with a connection for each client, TLS, and authentication with a token.
// Wall-clock times depend on the rest of the machine, so they stand only beside those of the other
// servers of the same run.
//
// The file measurements.go lists what is measured. The floor sends the same bytes without parsing
// them (floor.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/bench/command"
)

// options has the values of the flags.
type options struct {
	pods, watches, rounds  int
	each                   time.Duration
	only                   string
	watchproxy, beforeFile string // paths of binaries
}

func main() {
	command.Run(newCommand())
}

func newCommand() *cobra.Command {
	var o options
	cmd := command.New("bench-load", "Measure what reads cost at kube-apiserver, through watchproxy, and at a floor",
		`Starts kube-apiserver with etcd, fills it with pods, starts watchproxy and a minimal
server, and measures the processor time that each server takes for the same reads. The
table goes to standard output, progress to standard error.`,
		o.validate, func(ctx context.Context) error { return run(ctx, &o) })
	flags := cmd.Flags()
	flags.IntVar(&o.pods, "pods", 10_000, "`PODS` that there are, of 4.5 KB of JSON each")
	flags.IntVar(&o.watches, "watches", 1000, "`WATCHES` that get events")
	flags.IntVar(&o.rounds, "rounds", 3, "`ROUNDS` in which the servers take turns")
	flags.DurationVar(&o.each, "each", 3*time.Second, "how long a server's turn takes")
	flags.StringVar(&o.only, "only", "", "measure only what has a group and name that match a `REGEXP`, such as ^events")
	flags.StringVar(&o.beforeFile, "before", "", "another `FILE` to run as a proxy, for comparison, in the same run")
	command.ProxyFlag(cmd, &o.watchproxy)
	cmd.AddCommand(newFloorCommand())
	return cmd
}

func (o *options) validate() error {
	var errs []error
	for _, f := range []struct {
		flag        string
		value, most int
	}{{"pods", o.pods, 1 << 30}, {"watches", o.watches, 10_000}, {"rounds", o.rounds, 100}} {
		if f.value < 1 || f.value > f.most {
			errs = append(errs, fmt.Errorf("--%s=%d: must be from 1 to %d", f.flag, f.value, f.most))
		}
	}
	if o.each < minEach {
		errs = append(errs, fmt.Errorf("--each=%v: must be at least %v", o.each, minEach))
	}
	if _, err := regexp.Compile(o.only); err != nil {
		errs = append(errs, fmt.Errorf("--only: %w", err))
	}
	if _, err := os.Stat(o.watchproxy); err != nil {
		errs = append(errs, fmt.Errorf("--watchproxy: %w (make build)", err))
	}
	if o.beforeFile != "" {
		if _, err := os.Stat(o.beforeFile); err != nil {
			errs = append(errs, fmt.Errorf("--before: %w", err))
		}
	}
	return errors.Join(errs...)
}

// minEach is the shortest turn: processor time is counted in hundredths of a second.
const minEach = 100 * time.Millisecond

// run prints the report even if some measurements fail.
func run(ctx context.Context, o *options) error {
	r := newReport(ctx, o)
	err := measure(ctx, o, r)
	r.print(os.Stdout)
	return err
}
