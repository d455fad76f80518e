package command

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// flagValues contains the possible values of flags, by flag name. For other flags, shells complete
// file names.
var flagValues = map[string]cobra.CompletionFunc{
	"config":  cobra.FixedCompletions([]string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt),
	"context": contextNames,
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
