package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check configuration files and show defaults", Args: cobra.NoArgs, RunE: help}
	cmd.AddCommand(
		&cobra.Command{
			Use:               "validate FILE",
			Short:             "Report every error in a configuration file",
			Args:              cobra.ExactArgs(1),
			ValidArgsFunction: flagValues["config"],
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := config.Load(args[0])
				if err != nil {
					return err
				}
				c.SetDefaults()
				if err := c.Validate(); err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", args[0])
				return nil
			},
		},
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
