package table

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// datesAt returns the rules of a custom resource with date columns at these paths.
func datesAt(paths ...string) *Rules {
	columns := []string{"Name"}
	for i := range paths {
		columns = append(columns, fmt.Sprintf("At %d:date", i))
	}
	return New(&object.Resource{SelfDescribing: true, Columns: object.Columns{Defined: true, Definitions: definitions(columns), Paths: paths}})
}

// Paths of names are followed.
func TestFollowedDatePaths(t *testing.T) {
	const o = `{"metadata":{"annotations":{"e.c/at":"%[1]s"}},"spec":{"at":"%[1]s","with-dash_1":{"er":"%[1]s"},"list":["%[1]s"],"of":[{"at":"%[1]s"}]}}`
	at := now.Add(-time.Hour).Truncate(time.Second)
	object := fmt.Appendf(nil, o, at.Format(time.RFC3339))
	for path, found := range map[string]bool{
		".spec.at":                          true,
		".spec.with-dash_1.er":              true,
		`.metadata.annotations.e\.c/at`:     true,
		".metadata.annotations.e.c/at":      false,
		".spec.none":                        false,
		".spec.none.at":                     false,
		".spec.list":                        false,
		".spec.of.at":                       false,
		".spec." + strings.Repeat("x", 500): false,
	} {
		rules := datesAt(path)
		if !rules.Usable() {
			t.Errorf("%s is not followed", path)
			continue
		}
		times := rules.columns[1].since(object)
		if got := len(times) == 1 && times[0].Equal(at); got != found || !found && len(times) > 0 {
			t.Errorf("%s finds %v", path, times)
		}
	}
}

// Upstream answers Tables with any other path. Gjson would read some of them in another way. The
// cost of a filter may have no relation to the size of the object.
func TestDatePathsLeftToUpstream(t *testing.T) {
	for _, path := range []string{
		"", "$.spec.at", " .spec.at", ".spec.at ", ".spec['at']", ".spec.list[0]", ".spec.list.0", ".spec.list[*]", ".spec.list.#", ".spec.of.#.at", ".spec.*", ".spec.a*",
		".spec.a?", ".spec.@this", ".spec|at", ".spec.at|@ugly", `.spec.a\\.b`, `.spec.a\`, `.spec.a\*`, ".spec.", ".spec..at", "..at", `.spec.of[?(@.type=="Ready")].at`,
		".spec.of[?(@..a..a..a)].at", ".spec['at','of']", ".spec.at}{.spec.at", "{range .spec.list[*]}{@}{end}", ".spec.at}text", "spec.at", `"text"`, "1", ".spec.at\n",
	} {
		if datesAt(".spec.at", path).Usable() {
			t.Errorf("%q is followed", path)
		}
	}
	const most = 16
	for columns, usable := range map[int]bool{most: true, most + 1: false} {
		paths := make([]string, columns)
		for i := range paths {
			paths[i] = ".spec.at"
		}
		if datesAt(paths...).Usable() != usable {
			t.Errorf("%d date columns: usable is %t", columns, !usable)
		}
	}
	text := New(&object.Resource{SelfDescribing: true, Columns: object.Columns{Defined: true, Definitions: definitions([]string{"Name", "Any"}), Paths: []string{"..at"}}})
	if !text.Usable() {
		t.Error("the path of a column that is no date matters")
	}
}
