package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

// flagValues are the possible values of flags, by flag name. For other flags, shells complete the
// names of files.
var flagValues = map[string]cobra.CompletionFunc{
	"authentication": cobra.FixedCompletions([]string{"delegated", "none"}, cobra.ShellCompDirectiveNoFileComp),
	"log-level":      cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp),
	"output":         cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp),
	"config":         cobra.FixedCompletions([]string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt),
	"context":        contextNames,

	"admin":           cobra.NoFileCompletions,
	"admin-listen":    cobra.NoFileCompletions,
	"goaway-chance":   cobra.NoFileCompletions,
	"listen":          cobra.NoFileCompletions,
	"server":          cobra.NoFileCompletions,
	"tls-server-name": cobra.NoFileCompletions,
}

// completeFlags tells shells the possible values of all commands' flags and arguments.
func completeFlags(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if values, ok := flagValues[f.Name]; ok {
			if err := cmd.RegisterFlagCompletionFunc(f.Name, values); err != nil {
				panic(fmt.Sprintf("BUG: completion of --%s: %v", f.Name, err))
			}
		}
	})
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
}

// contextNames returns the contexts of the kubeconfig that the command line names.
func contextNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath, _ = cmd.Flags().GetString("kubeconfig")
	all, err := rules.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
