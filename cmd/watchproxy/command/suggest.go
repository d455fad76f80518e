package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// suggest returns a "did you mean" text with the names that are similar to a mistyped name, or
// nothing.
func suggest(typed string, names []string, quote func(string) string) string {
	// cobra compares mistyped words only with the names of commands.
	similar := &cobra.Command{SuggestionsMinimumDistance: 1}
	if len(typed) > 4 { // two edits change a short word into many others
		similar.SuggestionsMinimumDistance = 2
	}
	for _, name := range names {
		similar.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	found := similar.SuggestionsFor(typed)
	if typed == "" || len(found) == 0 {
		return ""
	}
	for i, name := range found {
		found[i] = quote(name)
	}
	return "; did you mean " + strings.Join(found, " or ") + "?"
}

func quoted(name string) string { return `"` + name + `"` }

func dashed(name string) string { return "--" + name }

// unknownCommand refuses arguments of a command that has only subcommands.
func unknownCommand(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		names := namesOf(cmd)
		return Misused("unknown %s %q; there are: %s%s", what, args[0], strings.Join(names, ", "), suggest(args[0], names, quoted))
	}
}

// flagError suggests the intended flag. If the command itself is unknown, the error is about the
// command, because its flags are unknown, too.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 && cmd.Args != nil {
		return cmd.Args(cmd, args)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	typed, written := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" { // one dash instead of two
		typed, _, _ = strings.Cut(letters, "=")
		written = "-" + typed
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	suggestion := ""
	if len(typed) > 1 { // a single letter is similar to many names
		suggestion = suggest(typed, names, dashed)
	}
	return fmt.Errorf("unknown flag %s%s", written, suggestion)
}
