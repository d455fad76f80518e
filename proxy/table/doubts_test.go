package table

import (
	"testing"
	"time"
)

// One wrong row makes the feed read the rows again. Only if the fresh rows are wrong, upstream
// answers Tables, for a time that grows.
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
		{m, -h, 1, reread, 2 * m},                                // nothing was read
		{h, 59 * m, 2, reread, h + m},                            // another late row
		{h + s, h + s, 3, firstRest, h + s + 5*m},                // the fresh rows are wrong
		{h + 2*s, h + s, 3, known, h + s + 5*m},                  //
		{h + 10*m, h + s, 3, reread, h + 11*m},                   // a try
		{h + 30*m, h + 10*m + s, 4, longerRest, h + 50*m},        // the fresh rows are wrong, seen later
		{2 * h, h + 10*m + s, 4, reread, 2*h + m},                //
		{2*h + s, 2*h + s, 5, longerRest, 3*h + 20*m + s},        //
		{4 * h, 2*h + s, 5, reread, 4*h + m},                     //
		{4*h + s, 4*h + s, 6, longerRest, 6*h + s},               // the longest rest
		{10*h + 2*s, 4*h + s, 6, reread, 10*h + m + 2*s},         //
		{16*h + 3*s, 10*h + 3*s, 7, firstRest, 16*h + 5*m + 3*s}, // forgotten
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
