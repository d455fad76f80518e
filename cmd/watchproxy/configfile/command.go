// Package configfile checks configuration files and the files named in them, and prints the
// defaults and the schema.
package configfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/command"
	"github.com/watchproxy/watchproxy/config"
)

// Command returns the command config.
func Command() *cobra.Command {
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
	var noFiles bool
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Report the errors in a configuration file",
		Long: `validate reports the errors in a configuration file, one a line, as
FILE:LINE: FIELD: what is wrong. Values are checked only if all fields are known and all
values can be read. It reads standard input if FILE is -. An empty file is valid: all
fields have their defaults.

It also checks the files that the configuration names. Certificates, private keys, CAs,
the kubeconfig and the audit policy must be readable, fit together, and not have
expired. Relative paths are relative to the working directory, as for serve. --no-files
checks only the configuration itself, for example if the other files are on another
machine. Environment variables that are not set on this machine then have the value x.`,
		Example: `  watchproxy config validate config.yaml
  kubectl -n watchproxy get configmap watchproxy -o jsonpath='{.data.config\.yaml}' | watchproxy config validate --no-files -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, data, err := read(args[0], cmd.InOrStdin())
			if err != nil {
				return fmt.Errorf("read configuration: %w", err)
			}
			errs := check(data, !noFiles, time.Now())
			for _, line := range errs {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s:%s\n", name, line)
			}
			if len(errs) > 0 {
				return command.ErrReported
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", name)
			return err
		},
	}
	cmd.Flags().BoolVar(&noFiles, "no-files", false, "do not check the files that the configuration names")
	return cmd
}

// read returns a file's name for messages, and its content.
func read(path string, stdin io.Reader) (name string, data []byte, err error) {
	signal.Reset() // Ctrl-C ends the process, because the read of a pipe does not end otherwise
	if path == "-" {
		data, err = io.ReadAll(stdin)
		return "<stdin>", data, err
	}
	data, err = os.ReadFile(path)
	return path, data, err
}

// check returns the errors of a configuration file in the order of their lines, each in the form
// LINE: FIELD: error. Without its files, the configuration may be for another machine.
func check(data []byte, withFiles bool, now time.Time) (lines []string) {
	c, at, err := config.Parse(data)
	if err == nil {
		c.SetDefaults()
		if !withFiles {
			c.Cache.Expand()
		}
		err = c.Validate()
	}
	var errs []error
	if several, ok := errors.AsType[utilerrors.Aggregate](err); ok {
		errs = several.Errors()
	}
	if c != nil && withFiles {
		for _, err := range checkFiles(c, now) {
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(at.Of(a), at.Of(b)) })
	for _, err := range errs {
		lines = append(lines, fmt.Sprintf("%d: %s", at.Of(err), config.Message(err)))
	}
	return lines
}
