package commandline

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// readmeLines limits the README: a newcomer reads it at once.
const readmeLines = 150

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	making   = regexp.MustCompile("(?m)(?:`|^    |&& )make ([a-z][a-z-]*)")
	target   = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// commandsRun says where the commands of each document run.
var commandsRun = map[string]string{
	"README.md":                    "TestReadme",
	"cmd/watchproxy/README.md":     "TestReadme",
	"proxy/access/README.md":       "TestReadme",
	".github/SUPPORT.md":           "TestReadme",
	"charts/watchproxy/README.md":  "TestDocuments of bench/chart",
	"charts/watchproxy/runbook.md": "TestDocuments of bench/chart",
	".github/CONTRIBUTING.md":      "targets of make, which exist; make test runs this",
	".github/SECURITY.md":          "nowhere: they verify a published release, which needs the network",
}

// In all documents, the links lead to files and headings that exist, and each make target exists.
func TestDocuments(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "git", "-C", cluster.Root(), "ls-files", "*.md").Output()
	must(t, err)
	documents := strings.Fields(string(out))
	if len(documents) < 8 {
		t.Fatalf("only %q", documents)
	}
	text := map[string]string{}
	for _, name := range append(documents, "Makefile") {
		content, err := os.ReadFile(filepath.Join(cluster.Root(), name))
		must(t, err)
		text[name] = string(content)
	}
	targets := map[string]bool{}
	for _, match := range target.FindAllStringSubmatch(text["Makefile"], -1) {
		targets[match[1]] = true
	}
	for _, name := range documents {
		if commands := cluster.CommandsT(t, name); len(commands) > 0 && commandsRun[name] == "" {
			t.Errorf("%s: no test runs its commands: %q", name, commands)
		}
		for _, match := range making.FindAllStringSubmatch(text[name], -1) {
			if !targets[match[1]] {
				t.Errorf("%s: there is no target %q", name, match[1])
			}
		}
		for _, match := range link.FindAllStringSubmatch(text[name], -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(match[1], "#")
			to := name
			if path != "" {
				to = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(cluster.Root(), to)); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if anchor != "" && !anchors(text[to])[anchor] {
				t.Errorf("%s: %s has no heading #%s", name, to, anchor)
			}
		}
	}
	if n := strings.Count(text["README.md"], "\n"); n > readmeLines {
		t.Errorf("the README has %d lines, at most %d are allowed", n, readmeLines)
	}
}

// anchors are the anchors of a document's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		all[strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")] = true
	}
	return all
}
