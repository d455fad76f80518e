package table

import (
	"testing"
	"time"
)

// One wrong row makes the feed read the rows again. Only if the fresh rows are wrong, upstream
// answers Tables for an hour.
func TestDoubts(t *testing.T) {
	var d doubts
	at := func(after time.Duration) time.Time { return now.Add(after) }
	const s, m, h = time.Second, time.Minute, time.Hour
	for _, step := range []struct {
		at, arrived time.Duration // of the mismatch, and of its row
		epoch       uint64
		want        verdict
		again       time.Duration // when rows of the epoch may be used again
	}{
		{0, -h, 1, reread, m}, // a late row
		{30 * s, -h, 1, known, m},
		{m, -h, 1, reread, 2 * m},                        // nothing was read
		{h, 59 * m, 2, reread, h + m},                    // another late row
		{h + s, h + s, 3, rejected, 2*h + s},             // the fresh rows are wrong
		{h + 2*s, h + s, 3, known, 2*h + s},              //
		{2*h + 2*s, h + s, 3, reread, 2*h + m + 2*s},     // a try
		{2*h + 20*m, 2*h + 3*s, 4, rejected, 3*h + 20*m}, // the fresh rows are wrong, seen later
		{4 * h, 2*h + 3*s, 4, reread, 4*h + m},           //
		{5 * h, 4*h + 3*m, 5, reread, 5*h + m},           // a late row, long after the fresh ones
	} {
		if got := d.mismatch(step.epoch, at(step.arrived), at(step.at)); got != step.want {
			t.Fatalf("after %v: %v instead of %v", step.at, got, step.want)
		}
		for _, after := range []time.Duration{-1, 0} {
			if d.allow(step.epoch, at(step.again+after)) != (after == 0) {
				t.Fatalf("after %v: usable is %v at %v", step.at, after != 0, step.again+after)
			}
		}
		if step.want == reread && !d.allow(step.epoch+1, at(step.at)) {
			t.Errorf("after %v: fresh rows are not used", step.at)
		}
	}
}
