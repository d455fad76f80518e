package workload

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	table := Table{Left: 1, Rows: [][]string{{"", "", "NEARLY"}}}
	table.Add("NAME", "N", "ALL")
	table.Add("für alle", "1000", "–")
	var out strings.Builder
	table.Print(&out)
	const want = `
                NEARLY
NAME         N     ALL
für alle  1000       –
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
