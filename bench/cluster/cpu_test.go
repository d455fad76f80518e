package cluster

import (
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 7 0 0 0 123 45 6 7 20 0 9 0 1000 1 2\n"
	if cpu, err := parseStat(stat); err != nil || cpu != 1680*time.Millisecond {
		t.Errorf("got %v, %v", cpu, err)
	}
	for _, stat := range []string{"", "42 (a", "42 (a) S 1 2 3", "42 (a) S 1 42 42 0 -1 4194560 7 0 0 0 x 45 6"} {
		if cpu, err := parseStat(stat); err == nil {
			t.Errorf("%q: got %v", stat, cpu)
		}
	}
}
