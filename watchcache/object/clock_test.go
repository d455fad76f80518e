package object

import (
	"testing"
	"time"
)

// A clock is right only if upstream's Date has proved it. A slow response proves nothing, and a
// jump of the wall clock ends the proof.
func TestClock(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	// at returns the instant after some time, with a wall clock that is ahead of upstream's.
	at := func(after, ahead time.Duration) instant { return instant{noon.Add(after + ahead), after} }
	// date returns upstream's Date.
	date := func(after time.Duration) time.Time { return noon.Add(after).Truncate(time.Second) }
	const s, ms = time.Second, time.Millisecond
	type step struct {
		sent, arrived, ahead time.Duration // of a response, whose Date is of the middle
		jump                 time.Duration // of the wall clock during the request
		then                 instant       // afterwards
		right                bool
	}
	for name, steps := range map[string][]step{
		"no response":              {},
		"right":                    {{0, 10 * ms, 0, 0, at(s, 0), true}},
		"right, within a second":   {{900 * ms, 910 * ms, 0, 0, at(s, 0), true}},
		"ahead":                    {{0, 10 * ms, 4 * s, 0, at(s, 4*s), false}},
		"behind":                   {{0, 10 * ms, -4 * s, 0, at(s, -4*s), false}},
		"slow, no proof":           {{0, 20 * s, 0, 0, at(21*s, 0), false}},
		"slow, after a proof":      {{0, 10 * ms, 0, 0, at(s, 0), true}, {2 * s, 20 * s, 0, 0, at(21*s, 0), true}},
		"slow, ahead by an hour":   {{0, 20 * s, time.Hour, 0, at(21*s, time.Hour), false}},
		"jumped":                   {{0, 10 * ms, 0, 0, at(s, 4*s), false}},
		"jumped and back":          {{0, 10 * ms, 0, 0, at(s, 4*s), false}, {2 * s, 2010 * ms, 0, 0, at(3*s, 0), true}},
		"jumped during a request":  {{0, 10 * ms, 0, 3 * s, at(s, 3*s), false}},
		"corrected":                {{0, 10 * ms, 4 * s, 0, at(s, 0), false}, {2 * s, 2010 * ms, 0, 0, at(3*s, 0), true}},
		"slewed":                   {{0, 10 * ms, 0, 0, at(time.Hour, 500*ms), true}},
		"upstream's clock jumped":  {{0, 10 * ms, 0, 0, at(s, 0), true}, {2 * s, 2010 * ms, 5 * s, 0, at(3*s, 0), false}},
		"suspended for an hour":    {{0, 10 * ms, 0, 0, at(s, time.Hour), false}},
		"slightly wrong, no proof": {{0, 10 * ms, 2500 * ms, 0, at(s, 2500*ms), false}},
	} {
		var c Clock
		if c.right(at(0, 0)) {
			t.Errorf("%s: right without a response", name)
		}
		for _, step := range steps {
			c.note(at(step.sent, step.ahead), at(step.arrived, step.ahead+step.jump), date((step.sent+step.arrived)/2))
			if got := c.right(step.then); got != step.right {
				t.Errorf("%s: %v after %v", name, got, step.then.mono)
			}
		}
	}
	if _, right := (*Clock)(nil).Now(); !right {
		t.Error("a nil clock is wrong")
	}
}

// If a clock's difference is within ClockSkew, upstream's Dates never prove it wrong. If it is more than
// a second above ClockSkew, every fast response proves it.
func TestClockBounds(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for ahead := -5 * time.Second; ahead <= 5*time.Second; ahead += 50 * time.Millisecond {
		for at := time.Duration(0); at < 2*time.Second; at += 50 * time.Millisecond {
			var c Clock
			c.last.Store(&clockProof{right: true, at: instant{noon.Add(ahead), 0}})
			c.note(instant{noon.Add(at + ahead), at}, instant{noon.Add(at + ahead), at}, noon.Add(at).Truncate(time.Second))
			switch right := c.last.Load().right; {
			case ahead.Abs() <= ClockSkew && !right, ahead.Abs() > ClockSkew+time.Second && right:
				t.Fatalf("%v ahead, after %v: right is %v", ahead, at, right)
			}
		}
	}
}
