package main

import (
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// outcomes are the results of a run by test, and what each test printed.
type outcomes struct {
	results map[string]string // by name: pass, fail or skip
	output  map[string]string
}

// read reads the output of go test -json to its end. The name of a test begins with the last
// element of its package's path.
func read(r io.Reader) (o outcomes, err error) {
	o = outcomes{map[string]string{}, map[string]string{}}
	for d := json.NewDecoder(r); ; {
		var e event
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return o, nil
		case err != nil:
			return o, err
		}
		name := e.Package[strings.LastIndexByte(e.Package, '/')+1:]
		if e.Test != "" {
			name += "/" + e.Test
		}
		switch e.Action {
		case "pass", "fail", "skip":
			o.results[name] = e.Action
		case "output":
			o.output[name] += e.Output
		}
	}
}

// usual matches the lines that each package prints.
var usual = regexp.MustCompile(`^(-test\.shuffle \d+|drawn with -seed=\d+|PASS|FAIL|exit status 1|(ok  |FAIL|\?   )\t.*)\s*$`)

// broken returns output that shows a failure beside all rows, or "": a panic, or a line of a package
// that fails, for example about a goroutine that is left.
func (o outcomes) broken() string {
	for name, output := range o.output {
		for line := range strings.Lines(output) {
			ofPackage := !strings.Contains(name, "/") && o.results[name] == "fail"
			if strings.HasPrefix(line, "panic: ") || ofPackage && !usual.MatchString(line) {
				return name + ": " + line
			}
		}
	}
	return ""
}

// rows returns the names of the rows with a result. A row is a test without subtests. A test that
// fails is also a row if all of its subtests pass.
func (o outcomes) rows(result string) (names []string) {
	inner := map[string]bool{}
	for name, got := range o.results {
		if result == "fail" && got != "fail" {
			continue
		}
		for at := strings.LastIndexByte(name, '/'); at > 0; at = strings.LastIndexByte(name[:at], '/') {
			inner[name[:at]] = true
		}
	}
	for name, got := range o.results {
		if got == result && !inner[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
