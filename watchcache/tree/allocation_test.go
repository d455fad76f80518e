//go:build !race

package tree

import "testing"

func TestTreeGetAllocates(t *testing.T) {
	tr := Build(numbered(5000), 0)
	if n := testing.AllocsPerRun(100, func() { _, _ = tr.Get("01234"), tr.rank("01234") }); n != 0 {
		t.Errorf("get and rank allocate %v times", n)
	}
}
