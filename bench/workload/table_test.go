package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	table := table{left: 1, rows: [][]string{{"", "", "NEARLY"}}}
	table.add("NAME", "N", "ALL")
	table.add("für alle", "1000", "–")
	var out strings.Builder
	table.print(&out)
	const want = `
                NEARLY
NAME         N     ALL
für alle  1000       –
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
