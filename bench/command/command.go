// Package command has the common parts of the bench's commands: signals, errors, and the flag for
// the proxy's binary.
package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// New returns a command that has flags but no arguments. Its help shows the flags in the order of
// their definition. The command runs if valid returns nil.
func New(use, short, long string, valid func() error, run func(context.Context) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		SilenceUsage: true, SilenceErrors: true,
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return valid() },
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
	}
	cmd.Flags().SortFlags = false
	return cmd
}

// ProxyFlag adds the flag --watchproxy, which names the proxy's binary.
func ProxyFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "watchproxy", filepath.Join(cluster.Root(), "bin", "watchproxy"), "`FILE` to run as the proxy")
}

// Run is the main function of a command. After the first signal the command cleans up and ends. A
// second signal ends it immediately, unless the signal is one of soft.
func Run(cmd *cobra.Command, soft ...os.Signal) {
	ctx, stop := signal.NotifyContext(context.Background(), append(soft, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)...)
	context.AfterFunc(ctx, func() {
		for _, s := range soft {
			signal.Ignore(s)
		}
		stop()
	})
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
		os.Exit(1)
	}
}
