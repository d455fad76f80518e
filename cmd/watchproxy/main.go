package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/kubeconfig"
	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
)

func main() {
	if err := newCommand().ExecuteContext(untilSignal()); err != nil {
		// Join the lines of the YAML parser's errors.
		fmt.Fprintln(os.Stderr, "watchproxy:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}

// untilSignal returns a context that ends with the first signal. The proxy then drains. A second
// signal ends the process immediately, so the goroutine lives as long as the process.
func untilSignal() context.Context {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "watchproxy: second signal: not waiting for clients")
		os.Exit(1)
	}()
	return ctx
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "watchproxy",
		Short: "A caching watch proxy for the Kubernetes API",
		Long: `watchproxy stands in front of kube-apiserver. One upstream list+watch per
resource feeds a cache. Any number of clients list, page, get and watch from it as
from the apiserver. All other requests are forwarded unchanged.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          help,
	}
	root.AddCommand(newServe(), kubeconfig.Command(), status.Command(), newConfig(), newVersion())
	completeFlags(root)
	return root
}

// help runs commands that only have subcommands. Without it, cobra would not reject unknown
// arguments.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }
