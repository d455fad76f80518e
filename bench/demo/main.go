// Command demo shows watchproxy at work on a real kube-apiserver: its input, its output and its
// cost. `make demo` runs this command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/command"
)

// options are the flags.
type options struct {
	pods, informers, rate int
	each                  time.Duration // of measuring, without the proxy and with it
	exit                  bool
	watchproxy            string // path of the binary
}

func main() {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	command.Run(newCommand(), syscall.SIGPIPE) // the reader may have gone, as in make demo | head
}

func newCommand() *cobra.Command {
	var o options
	cmd := command.New("demo", "Show watchproxy at work on a real kube-apiserver",
		`Starts kube-apiserver with etcd and seeds pods. Runs client-go informers directly at
the apiserver, while pods change, and then the same informers through watchproxy, over
TLS and HTTP/2 with authentication. Shows once a second what goes in and what goes out,
and compares what both cost. Then it stays up to be tried with kubectl. Ctrl-C ends
everything.`,
		o.validate, func(ctx context.Context) error { return run(ctx, o) })
	flags := cmd.Flags()
	flags.IntVar(&o.pods, "pods", 2000, "how many `PODS` there are")
	flags.IntVar(&o.informers, "informers", 200, "how many `INFORMERS` watch them: half all pods, a quarter a namespace, a quarter a node")
	flags.IntVar(&o.rate, "rate", 20, "`UPDATES` of pods per second")
	flags.DurationVar(&o.each, "for", 15*time.Second, "how long to measure, without watchproxy and with it")
	flags.BoolVar(&o.exit, "exit", false, "end after that, instead of staying up")
	command.ProxyFlag(cmd, &o.watchproxy)
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
	if o.each < time.Second {
		errs = append(errs, fmt.Errorf("--for=%v: must be at least 1s", o.each))
	}
	if _, err := os.Stat(o.watchproxy); err != nil {
		errs = append(errs, fmt.Errorf("--watchproxy: %w (make build)", err))
	}
	return errors.Join(errs...)
}
