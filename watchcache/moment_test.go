package watchcache

import (
	"testing"
	"time"
)

// The difference between two moments follows the monotonic clock and ignores the wall clock.
func TestMomentNeedsNoWallClock(t *testing.T) {
	now := time.Now()
	if got := Moment(now.Add(time.Hour)) - Moment(now); got != int64(time.Hour) {
		t.Errorf("an hour is %v", time.Duration(got))
	}
	if got := Moment(began); got != began.UnixNano() {
		t.Errorf("the process's start is %d, want %d", got, began.UnixNano())
	}
}
