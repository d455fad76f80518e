// Command demo shows watchproxy at work on a real kube-apiserver: what goes in, what goes out, and what that costs. It is
// what make demo runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// options are the flags.
type options struct {
	pods, informers, rate int
	measured              time.Duration // 0: until interrupted
	exit                  bool
	watchproxy            string // path of the binary
}

func main() {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	// The first signal tidies up; a second one ends the demo at once. A reader that has gone, as in make demo | head, is
	// like a signal, but must not cut the tidying short.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGPIPE)
		stop()
	})
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show watchproxy at work on a real kube-apiserver",
		Long: `Starts kube-apiserver with etcd, seeds pods, starts watchproxy, runs client-go
informers through it while pods change, and shows once a second what goes in and
what goes out. Then it stays up to be tried with kubectl. Ctrl-C ends everything.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PreRunE:       func(*cobra.Command, []string) error { return o.validate() },
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, newScreen(os.Stdout)) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.pods, "pods", 2000, "how many `PODS` there are")
	flags.IntVar(&o.informers, "informers", 200, "how many `INFORMERS` watch them: half all pods, a quarter a namespace, a quarter a node")
	flags.IntVar(&o.rate, "rate", 20, "`UPDATES` of pods per second")
	flags.DurationVar(&o.measured, "for", 20*time.Second, "how long to measure; 0s: until Ctrl-C")
	flags.BoolVar(&o.exit, "exit", false, "end after that, instead of staying up")
	flags.StringVar(&o.watchproxy, "watchproxy", filepath.Join(cluster.Root(), "bin", "watchproxy"), "`FILE` to run as the proxy")
	return cmd
}

func (o *options) validate() error {
	var errs []error
	for _, f := range []struct {
		flag  string
		value int
	}{{"pods", o.pods}, {"informers", o.informers}, {"rate", o.rate}} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("--%s=%d: must be at least 1", f.flag, f.value))
		}
	}
	if o.measured < 0 {
		errs = append(errs, fmt.Errorf("--for=%v: must not be negative", o.measured))
	}
	if o.exit && o.measured == 0 {
		errs = append(errs, errors.New("--exit needs a --for longer than 0s"))
	}
	if _, err := os.Stat(o.watchproxy); err != nil {
		errs = append(errs, fmt.Errorf("--watchproxy: %w (make build)", err))
	}
	return errors.Join(errs...)
}
