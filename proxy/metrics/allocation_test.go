//go:build !race

package metrics

import (
	"strings"
	"testing"
)

// Counting a known user makes no garbage.
func TestUsersAreCountedWithoutGarbage(t *testing.T) {
	var u Users
	name := strings.Repeat("n", 300)
	if n := testing.AllocsPerRun(1000, func() { u.Request(name, false) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
