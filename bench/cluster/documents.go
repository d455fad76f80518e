package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// programs are the first words of commands in documents.
var programs = regexp.MustCompile(`^(make|bin/watchproxy|watchproxy|kubectl|helm|curl|cosign|gh|sha256sum|cd|go) `)

// CommandsT returns the commands of a document, in order. Commands are in indented blocks and in
// fenced blocks of a shell. A backslash continues a command on the next line, and text after # is a
// remark. All other indented blocks are YAML.
func CommandsT(tb testing.TB, document string) (all []string) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), document))
	MustT(tb, err)
	var block []string
	fence := ""
	for line := range strings.Lines(string(text) + "\n") {
		indented, isIndented := strings.CutPrefix(line, "    ")
		switch marker, isFence := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case isFence && fence != "":
			fence = ""
		case isFence:
			fence = "```" + marker
			continue
		case fence == "" && isIndented:
			block = append(block, indented)
			continue
		case fence == "```sh" || fence == "```bash" || fence == "```shell":
			block = append(block, line)
			continue
		}
		all = append(all, commandsIn(tb, document, block)...)
		block = nil
	}
	return all
}

var remark = regexp.MustCompile(`\s+# .*$`)

func commandsIn(tb testing.TB, document string, block []string) (all []string) {
	tb.Helper()
	if len(block) == 0 || regexp.MustCompile(`^[-\w ]+:(\s|$)`).MatchString(block[0]) || strings.HasPrefix(block[0], "- ") {
		return nil
	}
	command := ""
	for _, line := range block {
		part, more := strings.CutSuffix(remark.ReplaceAllString(strings.TrimSpace(line), ""), `\`)
		if command += part; more {
			continue
		}
		if !programs.MatchString(command + " ") {
			tb.Errorf("%s: %q is neither a known program nor YAML", document, command)
		}
		all, command = append(all, command), ""
	}
	return all
}
