package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
)

// An error before RunE is one of the command line: an unknown command, flag or argument, or
// incompatible flags. Its exit code differs, because running the same command again cannot help.
const (
	exitFailed  = 1
	exitMisused = 2
)

const exitCodes = `Exit codes: 0 if the command succeeds, 2 if the command line is wrong (an unknown
command, flag or argument, a missing or malformed value), 1 for all other errors, such as
those of the configuration.`

// errReported makes a command fail that has already printed the error.
var errReported = errors.New("already reported")

// failure is an error of a command that ran. All other errors are errors of the command line.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// runCommand executes the command line and returns the exit code. It prints an error on one line.
func runCommand(ctx context.Context, root *cobra.Command, stderr io.Writer) (exitCode int) {
	cmd, err := root.ExecuteContextC(ctx)
	var ran failure
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported), errors.Is(err, status.ErrUnhealthy):
		return exitFailed
	case errors.As(err, &ran):
		fmt.Fprintln(stderr, "watchproxy:", oneLine(err))
		return exitFailed
	}
	fmt.Fprintf(stderr, "watchproxy: %s (see '%s --help')\n", oneLine(err), cmd.CommandPath())
	return exitMisused
}

// oneLine joins the lines of an error. For example, errors of the YAML parser have several lines.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func prepareRoot(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Long += "\n\n" + exitCodes
	for _, cmd := range root.Commands() {
		prepare(cmd)
	}
}

func prepare(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.RunE == nil { // cobra prints help for unknown ones, and succeeds
		cmd.Args = cobra.NoArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return failure{err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		prepare(c)
	}
}
