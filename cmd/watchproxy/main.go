// Command watchproxy is a caching watch proxy for the Kubernetes API.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// The first signal drains; a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "watchproxy:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "watchproxy",
		Short: "A caching watch proxy for the Kubernetes API",
		Long: `watchproxy stands in front of kube-apiserver. One upstream list+watch per
resource feeds a cache; from it any number of clients list, page, get and watch
as if it were the apiserver. Everything else is forwarded unchanged.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.AddCommand(newServe(), newConfig(), newVersion())
	return root
}
