//go:build !race

package watchcache

import (
	"math"
	"testing"
)

func TestCursorPollAllocates(t *testing.T) {
	c := New(*Pods, Roomy)
	c.Writer().Reset(nil, 1)
	cursor := Watch(t, c, "a", 1)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = cursor.Poll(nil, 10, math.MaxInt) }); n != 0 {
		t.Errorf("a poll of nothing allocates %v times", n)
	}
	applyPods(t, c, nothing, web(2))
	deltas := make([]Delta, 0, 10)
	if n := testing.AllocsPerRun(100, func() {
		cursor.next, cursor.behind = 1, true
		var err error
		if deltas, _, err = cursor.Poll(deltas[:0], 10, math.MaxInt); err != nil || len(deltas) != 1 {
			t.Fatalf("polled %d deltas: %v", len(deltas), err)
		}
	}); n != 0 {
		t.Errorf("a poll of one event allocates %v times", n)
	}
}
