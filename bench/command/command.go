// Package command is what the commands of the bench have in common: signals, errors, and the flag of the
// proxy that they run.
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

// New is a command of no arguments but its flags, which it shows in their order. It is run if they are valid.
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

// Run is the main of a command. The first signal tidies up; a second one ends the command at once,
// unless it is one of the soft ones.
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
