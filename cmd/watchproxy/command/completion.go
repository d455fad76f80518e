package command

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

// flagValues contains the possible values of flags, by flag name. For other flags, shells complete
// file names.
var flagValues = map[string]cobra.CompletionFunc{
	"authentication": cobra.FixedCompletions([]string{"delegated", "none"}, cobra.ShellCompDirectiveNoFileComp),
	"log-level":      cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp),
	"output":         cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp),
	"config":         cobra.FixedCompletions([]string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt),
	"context":        contextNames,

	"admin":           cobra.NoFileCompletions,
	"admin-listen":    cobra.NoFileCompletions,
	"goaway-chance":   cobra.NoFileCompletions,
	"listen":          cobra.NoFileCompletions,
	"timeout":         cobra.NoFileCompletions,
	"server":          cobra.NoFileCompletions,
	"tls-server-name": cobra.NoFileCompletions,
}

// ConfigFiles completes the names of configuration files.
var ConfigFiles = flagValues["config"]

// complete sets the possible values of a command's flags and arguments for shells.
func complete(cmd *cobra.Command) {
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
}

// contextNames returns the contexts of the kubeconfig on the command line.
func contextNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath, _ = cmd.Flags().GetString("kubeconfig")
	all, err := rules.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
