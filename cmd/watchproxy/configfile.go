package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check configuration files and show defaults"}
	cmd.AddCommand(
		newValidate(),
		&cobra.Command{
			Use:   "schema",
			Short: "Print the JSON schema of configuration files, for editors",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := cmd.OutOrStdout().Write(config.Schema())
				return err
			},
		},
		&cobra.Command{
			Use:   "defaults",
			Short: "Print the configuration of an empty file",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				out, err := yaml.Marshal(config.Default())
				if err != nil {
					return fmt.Errorf("print defaults: %w", err)
				}
				_, err = cmd.OutOrStdout().Write(out)
				return err
			},
		},
	)
	return cmd
}

func newValidate() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Report the errors in a configuration file",
		Long: `validate reports the errors in a configuration file, one a line, as
FILE:LINE: FIELD: what is wrong. Values are checked only if all fields are known and all
values can be read. It reads standard input if FILE is -. An empty file is valid: all
fields have their defaults.

The configuration may be for another machine: the files that it names are not read, and
environment variables that are not set on this machine have the value x.`,
		Example: `  watchproxy config validate config.yaml
  kubectl -n watchproxy get configmap watchproxy -o jsonpath='{.data.config\.yaml}' |
    watchproxy config validate -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, data, err := readConfig(args[0], cmd.InOrStdin())
			if err != nil {
				return fmt.Errorf("read configuration: %w", err)
			}
			errs := checkConfig(data)
			for _, line := range errs {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s:%s\n", name, line)
			}
			if len(errs) > 0 {
				return errReported
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", name)
			return err
		},
	}
}

// readConfig returns a file's name for messages, and its content.
func readConfig(path string, stdin io.Reader) (name string, data []byte, err error) {
	signal.Reset() // Ctrl-C ends the process, because the read of a pipe does not end otherwise
	if path == "-" {
		data, err = io.ReadAll(stdin)
		return "<stdin>", data, err
	}
	data, err = os.ReadFile(path)
	return path, data, err
}

// checkConfig returns the errors of a configuration file by line, each as LINE: FIELD: error.
func checkConfig(data []byte) (lines []string) {
	c, at, err := config.Parse(data)
	if err == nil {
		c.Cache.Expand(func(name string) string { return cmp.Or(os.Getenv(name), "x") })
		c.SetDefaults()
		err = c.Validate()
	}
	var errs []error
	if several, ok := errors.AsType[utilerrors.Aggregate](err); ok {
		errs = several.Errors()
	}
	slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(at.Of(a), at.Of(b)) })
	for _, err := range errs {
		lines = append(lines, fmt.Sprintf("%d: %s", at.Of(err), config.Message(err)))
	}
	return lines
}
