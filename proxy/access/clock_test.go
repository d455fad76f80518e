package access

import (
	"testing"
	"time"
	"unsafe"
)

// setWall returns t with the wall clock set forward, as settimeofday does. The monotonic clock stays.
func setWall(t time.Time, by time.Duration) time.Time {
	const seconds = 30 // bits of time.Time's nanoseconds, below its 33 bits of seconds
	first := (*uint64)(unsafe.Pointer(&t))
	if *first>>63 == 0 {
		panic("no monotonic part")
	}
	whole, rest := by/time.Second, by%time.Second
	nanos := int64(*first&(1<<seconds-1)) + int64(rest)
	if nanos < 0 {
		whole, nanos = whole-1, nanos+int64(time.Second)
	} else if nanos >= int64(time.Second) {
		whole, nanos = whole+1, nanos-int64(time.Second)
	}
	*first = *first&^(1<<seconds-1) + uint64(nanos) + uint64(int64(whole)<<seconds)
	return t
}

// A time is over when it is over by one of the two clocks. So a decision that is made while the wall
// clock is set wrongly counts for its TTL, whatever becomes of the clock.
func TestEnded(t *testing.T) {
	const ttl, wrong = 5 * time.Second, time.Hour
	now := time.Now()
	later := func(monotonic, wall time.Duration) time.Time { return setWall(now.Add(monotonic), wall-monotonic) }
	for _, test := range []struct {
		name      string
		made, now time.Time
		want      bool
	}{
		{"soon", now, later(ttl-1, ttl-1), false},
		{"later", now, later(ttl, ttl), true},
		{"after a sleep of the machine", now, later(1, ttl), true},
		{"set forward", now, later(1, wrong), true},
		{"set back", now, later(ttl, -wrong), true},
		{"set back for a moment", now, later(ttl-1, -wrong), false},
		{"made while set forward, then set back", later(0, wrong), later(ttl, ttl), true},
	} {
		if got := Ended(test.made.Add(ttl), test.now); got != test.want {
			t.Errorf("%s: over %t, want %t", test.name, got, test.want)
		}
	}
}
