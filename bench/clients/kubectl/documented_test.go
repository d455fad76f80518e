package kubectl

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// documentedRow is a row of the README's table of kubectl commands.
type documentedRow struct {
	commands [][]string // words; a word in capitals stands for any word
	claim    claim
}

// claim is what the README says about the requests that the apiserver gets.
type claim struct {
	text string // the beginning of the README's text
	// allows reports whether the apiserver may get a request.
	allows func(verb, resource string) bool
	some   bool // it gets at least one
}

var claims = []claim{
	{"nothing", func(string, string) bool { return false }, false},
	{"a get for each name,", func(verb, _ string) bool { return verb == "get" }, true},
	{"gets of the object", func(verb, _ string) bool { return verb == "get" }, true},
	{"the list", func(verb, _ string) bool { return verb == "list" }, true},
	{"the lists of jobs and cronjobs", func(verb, resource string) bool {
		return verb == "list" && (resource == "jobs" || resource == "cronjobs")
	}, true},
	{"gets of each object, the list of its events", func(verb, resource string) bool {
		return verb == "get" || verb == "list" && resource == "events"
	}, true},
	{"discovery, OpenAPI and", func(string, string) bool { return false }, false}, // of no resource
	{"everything", func(string, string) bool { return true }, false},
}

// check compares the requests that the apiserver got with the claim.
func (c claim) check(passed []cluster.AuditRecord) error {
	if c.some && len(passed) == 0 {
		return fmt.Errorf("the apiserver gets no request, but the README says: %s", c.text)
	}
	for _, r := range passed {
		if !c.allows(r.Verb, r.ObjectRef.Resource) {
			return fmt.Errorf("the apiserver gets %s %s, but the README says: %s", r.Verb, r.RequestURI, c.text)
		}
	}
	return nil
}

var quoted = regexp.MustCompile("`([^`]+)`")

// documented returns the rows of the README's table. The first row contains the commands that the
// cache answers.
func documented(t *testing.T) (rows []documentedRow) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root(), "cmd", "watchproxy", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## kubectl commands\n")
	_, table, _ := strings.Cut(section, "\n|---|---|---|\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 {
			break
		}
		var row documentedRow
		for _, c := range claims {
			if strings.HasPrefix(strings.TrimSpace(cells[3]), c.text) {
				row.claim = c
			}
		}
		if row.claim.allows == nil {
			t.Fatalf("the test does not understand the README's %q", cells[3])
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			row.commands = append(row.commands, strings.Fields(m[1]))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 || rows[0].claim.text != "nothing" {
		t.Fatalf("the README has %d rows of kubectl commands", len(rows))
	}
	return rows
}

// claimOf returns the claim about a command: that of the row with the most literal words.
func claimOf(t *testing.T, rows []documentedRow, command []string) (of claim) {
	t.Helper()
	most := 0
	for _, row := range rows[1:] {
		for _, words := range row.commands {
			if literal, ok := match(words, command); ok && literal > most {
				most, of = literal, row.claim
			}
		}
	}
	if most == 0 {
		t.Fatalf("the README does not list %q", command)
	}
	return of
}

// match reports whether a command begins with words, and how many of these are literal.
func match(words, command []string) (literal int, ok bool) {
	if len(words) > len(command) {
		return 0, false
	}
	for i, word := range words {
		switch stands := word == strings.ToUpper(word); {
		case stands && strings.HasPrefix(command[i], "-"):
			return 0, false
		case stands:
		case word != command[i]:
			return 0, false
		default:
			literal++
		}
	}
	return literal, true
}
