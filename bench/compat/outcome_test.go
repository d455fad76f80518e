package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const output = `
{"Action":"start","Package":"example.com/conformance"}
{"Action":"output","Package":"example.com/conformance","Test":"TestA/one","Output":"differs\n"}
{"Action":"fail","Package":"example.com/conformance","Test":"TestA/one"}
{"Action":"pass","Package":"example.com/conformance","Test":"TestA/two"}
{"Action":"fail","Package":"example.com/conformance","Test":"TestA"}
{"Action":"pass","Package":"example.com/conformance","Test":"TestB/one"}
{"Action":"fail","Package":"example.com/conformance","Test":"TestB"}
{"Action":"skip","Package":"example.com/conformance","Test":"TestC"}
{"Action":"fail","Package":"example.com/conformance"}`

func TestRows(t *testing.T) {
	o, err := read(strings.NewReader(output))
	cluster.MustT(t, err)
	for result, want := range map[string][]string{
		"fail": {"conformance/TestA/one", "conformance/TestB"},
		"pass": {"conformance/TestA/two", "conformance/TestB/one"},
		"skip": {"conformance/TestC"},
	} {
		if got := o.rows(result); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", result, got, want)
		}
	}
	if got := o.output["conformance/TestA/one"]; got != "differs\n" {
		t.Errorf("printed %q", got)
	}
}

// A failure of a package is seen even if a row below it fails, too.
func TestBroken(t *testing.T) {
	line := func(test, text string) string {
		return `
{"Action":"output","Package":"example.com/conformance","Test":"` + test + `","Output":"` + text + `\n"}`
	}
	for _, tc := range []struct {
		more   string
		broken bool
	}{
		{"", false},
		{line("", "-test.shuffle 12"), false},
		{line("", "drawn with -seed=1"), false},
		{line("", "FAIL\\texample.com/conformance\\t1.2s"), false},
		{line("TestA", "panic: test timed out after 20m"), true},
		{line("", "a goroutine is left"), true},
	} {
		o, err := read(strings.NewReader(output + tc.more))
		cluster.MustT(t, err)
		if got := o.broken(); (got != "") != tc.broken {
			t.Errorf("after %s: %q", tc.more, got)
		}
	}
}

// A row is explained by the first difference that matches its whole name. A difference of the
// version without rows is reported.
func TestExplain(t *testing.T) {
	differences := []difference{
		{Versions: []string{"v1.33"}, Why: "a", rows: regexp.MustCompile("^(?:x/A.*)$")},
		{Versions: []string{"v1.33"}, Why: "none", rows: regexp.MustCompile("^(?:x/B)$")},
		{Versions: []string{"v1.34"}, Why: "other", rows: regexp.MustCompile("^(?:x/C)$")},
	}
	explained, unknown, stale := explain("v1.33.13", []string{"x/A1", "x/A2", "x/B1", "x/C"}, differences)
	if len(explained) != 1 || explained[0].why != "a" || !slices.Equal(explained[0].rows, []string{"x/A1", "x/A2"}) {
		t.Errorf("explained %v", explained)
	}
	if !slices.Equal(unknown, []string{"x/B1", "x/C"}) || !slices.Equal(stale, []string{"none"}) {
		t.Errorf("unknown %q, stale %q", unknown, stale)
	}
}
