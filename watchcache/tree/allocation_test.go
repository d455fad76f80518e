//go:build !race

package tree

import (
	"fmt"
	"testing"
)

func TestTreeGetAllocates(t *testing.T) {
	var m model
	for n := range 5000 {
		m = append(m, entry(fmt.Sprintf("%05d", n), 1))
	}
	tr := Build(m, 0)
	if n := testing.AllocsPerRun(100, func() { _, _ = tr.Get("01234"), tr.rank("01234") }); n != 0 {
		t.Errorf("get and rank allocate %v times", n)
	}
}
