//go:build !race

package table

import (
	"testing"
	"time"
)

// A pod that has not restarted costs only its age. The most that can be allocated is far below one
// attempt to explain a text.
func TestAllocationsOfARow(t *testing.T) {
	const most = 40
	pod, row := podRow("0", "")
	var dst []byte
	allocated := testing.AllocsPerRun(100, func() {
		var err error
		if dst, _, _, err = podRules.appendRow(dst[:0], row, pod, now, now.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > most {
		t.Errorf("%v allocations, at most %d are allowed", allocated, most)
	}
}
