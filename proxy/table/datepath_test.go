package table

import (
	"fmt"
	"strings"
	"sync"
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

// Paths of fields, indexes, slices and one filter are followed.
func TestFollowedDatePaths(t *testing.T) {
	const o = `{"metadata":{"annotations":{"e.c/at":"%[1]s"}},"spec":{"at":"%[1]s","deep":{"er":"%[1]s"},"list":["%[1]s","no"],
		"lists":[[{"at":"%[1]s"}]],"of":[{"n":1,"on":false,"x":{"y":"a"}},{"n":2.5,"on":true,"name":"it's","type":"Ready","x":{"y":"b c"},"at":"%[1]s"}]}}`
	at := now.Add(-time.Hour).Truncate(time.Second)
	object := fmt.Appendf(nil, o, at.Format(time.RFC3339))
	for path, found := range map[string]bool{
		".spec.at":                              true,
		"$.spec.at":                             true,
		" .spec.at":                             true,
		".spec['at']":                           true,
		".spec['deep.er']":                      true,
		`.metadata.annotations.e\.c/at`:         true,
		`.metadata.annotations['e\.c/at']`:      true,
		".spec.none":                            false,
		".spec.none.at":                         false,
		".spec.list[0]":                         true,
		".spec.list[-2]":                        true,
		".spec.list[1]":                         false,
		".spec.list[7]":                         false,
		".spec.list[*]":                         true,
		".spec.list[0:1]":                       true,
		".spec.list[0:2:2]":                     true,
		".spec.lists[*][*].at":                  true,
		".spec.at[0]":                           false,
		`.spec.of[?(@.type=="Ready")].at`:       true,
		`.spec.of[?(@.type == "Ready")].at`:     true,
		`.spec.of[?(@.type=='Ready')].at`:       true,
		`.spec.of[?(@.type=="Ready")]['at']`:    true,
		`.spec.of[?(@.type!="Other")].at`:       true,
		`.spec.of[?(@.type=="Other")].at`:       false,
		`.spec.of[?(@.n==2.5)].at`:              false, // the first is an integer, so they cannot be compared
		`.spec.of[?(@.on==true)].at`:            true,
		`.spec.of[?(@.x.y=="b c")].at`:          true,
		`.spec.of[?(@['type']=="Ready")].at`:    true,
		`.spec.of[?(@.type>"Re")].at`:           true,
		`.spec.of[?(@.type)].at`:                true,
		`.spec.lists[0][?(@.at)].at`:            true,
		`.spec.at[?(@.type=="Ready")]`:          false,
		".spec." + strings.Repeat("x", 500):     false, // no JSONPath is parsed
		".spec[0]." + strings.Repeat("x", 200):  false,
		`.spec.of[?(@.type=="Ready")].at.at.at`: false,
	} {
		rules := datesAt(path)
		if !rules.Usable() {
			t.Errorf("%s is not followed", path)
			continue
		}
		// Objects of a page are rendered at the same time.
		var renders sync.WaitGroup
		for range 2 {
			renders.Go(func() {
				times := rules.columns[1].since(object)
				if got := len(times) == 1 && times[0].Equal(at); got != found || !found && len(times) > 0 {
					t.Errorf("%s finds %v", path, times)
				}
			})
		}
		renders.Wait()
	}
}

// Upstream answers Tables with any other path. The cost of some has no relation to the object's
// size.
func TestDatePathsLeftToUpstream(t *testing.T) {
	for _, path := range []string{
		"", ".spec..at", "..at", ".spec.of[?(@..a..a..a)].at", `.spec.of[?(@..type=="Ready")].at`, `.spec.of[?(@.a[*]=="x")].at`,
		`.spec.of[?(@.a=="x")].of[?(@.b=="y")].at`, `.spec.of[?(@.a==@.b)].at`, `.spec.of[?("x"=="x")].at`, ".spec.of[?(@)].at", ".spec.of[?(@.a[?(@.b)])].at",
		`.spec.of[?(@.a=~"x")].at`, `.spec.of[?(@.a==x)].at`, ".spec.list[0,1]", ".spec['at','of']", ".spec['..at']", ".spec.*", ".spec.at}{.spec.at", ".spec.at} {..at",
		"{range .spec.list[*]}{@}{end}", "range .spec.list", ".spec.at}text", "spec.at", `"text"`, "1", "true", ".spec.at[", ".spec.of[?(@.a", ".spec.at}",
		".spec[0]." + strings.Repeat("x.", 200) + "x",
	} {
		if datesAt(".spec.at", path).Usable() {
			t.Errorf("%s is followed", path)
		}
	}
	if rules := datesAt(".spec.at", ".spec[0]", ".spec[1]"); rules.Decodes != 2 {
		t.Errorf("an object is decoded %d times", rules.Decodes)
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

// A filter that searches recursively must not be evaluated: it takes seconds for a small object.
func TestCostlyDatePathIsNotEvaluated(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 150) + "1" + strings.Repeat("}", 150)
	o := []byte(`{"spec":{"l":[` + deep + `]}}`)
	began := time.Now()
	if rules := datesAt(".spec.l[?(@..a..a..a)].when"); rules.Usable() {
		_, _, _, _ = rules.appendRow(nil, []byte(`{"cells":["x","5m"]`), o, now, now)
		t.Errorf("a row of an object of %d bytes took %v", len(o), time.Since(began))
	}
}
