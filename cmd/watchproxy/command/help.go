package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// newHelp returns the command help. Unlike cobra's own help, it fails for an unknown topic.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			topic, rest := find(cmd.Root(), args)
			if len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names := slices.DeleteFunc(namesOf(topic), func(name string) bool { return !strings.HasPrefix(name, begun) })
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest := find(cmd.Root(), args)
			if len(rest) == 0 {
				topic.InitDefaultHelpFlag()
				return topic.Help()
			}
			names := namesOf(topic)
			if len(names) == 0 {
				return Misused("unknown help topic %q: %s has no commands", rest[0], topic.CommandPath())
			}
			return Misused("unknown help topic %q; there are: %s%s", rest[0], strings.Join(names, ", "), suggest(rest[0], names, quoted))
		},
	}
}

// find follows names from a command to its subcommands as far as possible.
func find(from *cobra.Command, names []string) (found *cobra.Command, rest []string) {
	for len(names) > 0 {
		at := from
		for _, c := range from.Commands() {
			if c.Name() == names[0] {
				from, names = c, names[1:]
				break
			}
		}
		if from == at {
			break
		}
	}
	return from, names
}
