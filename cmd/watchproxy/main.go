package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
)

func main() {
	if code := runCommand(untilSignal(), newCommand(), os.Stderr); code != 0 {
		os.Exit(code)
	}
}

// untilSignal returns a context that ends at the first signal. The proxy then drains. A second
// signal ends the process immediately. So the goroutine lives as long as the process.
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
		// Cobra prints the name and "version" itself. A template of our own would let the linker
		// keep all exported methods of all types.
		Version: strings.TrimPrefix(buildOf().String(), "watchproxy version "),
	}
	root.Flags().Bool("version", false, "print version, commit, Go version and platform")
	root.AddCommand(newServe(), newSidecar(), newKubeconfig(), status.Command(), newConfig(),
		newVersion())
	prepareRoot(root)
	return root
}
