package object

import (
	"sync/atomic"
	"time"
)

const (
	// ClockSkew is the maximum difference between upstream's clock and this machine's clock. Above
	// it, this machine cannot compute ages.
	ClockSkew = 2 * time.Second
	// clockJump is the maximum change of the wall clock, relative to the monotonic clock, that
	// leaves the proof of a Clock valid.
	clockJump = time.Second
)

// Clock knows whether this machine's clock agrees with upstream's clock, so that ages can be
// computed here. A nil Clock is always right.
//
// The Date of a response bounds the difference from both sides: upstream wrote it between the
// request and the response's arrival. A slow response gives wide bounds, so a response counts only
// if it proves that the difference is at most [ClockSkew], or that it is more.
//
// A change of this machine's time moves the wall clock relative to the monotonic clock. So does a
// suspended machine, whose monotonic clock stops. Both end the proof at once, and the clock counts
// as wrong until the next response.
type Clock struct{ last atomic.Pointer[clockProof] }

type clockProof struct {
	at    instant
	right bool
}

// Note reads the Date of a response. sent is the time of the request.
func (c *Clock) Note(sent, arrived, date time.Time) {
	c.note(instantOf(sent), instantOf(arrived), date)
}

func (c *Clock) note(sent, arrived instant, date time.Time) {
	// Upstream's clock is ahead by least to most. Date has no fractions of a second.
	least, most := date.Sub(arrived.wall), date.Add(time.Second).Sub(sent.wall)
	right, wrong := least >= -ClockSkew && most <= ClockSkew, least > ClockSkew || most < -ClockSkew
	if (right || wrong) && !arrived.jumped(sent) {
		c.last.Store(&clockProof{arrived, right})
	}
}

// Now returns the wall clock's time, and whether it is right. The time has no monotonic part,
// because the monotonic clock stops while a machine sleeps.
func (c *Clock) Now() (now time.Time, right bool) {
	now = time.Now()
	return now.Round(0), c == nil || c.right(instantOf(now))
}

func (c *Clock) right(now instant) bool {
	p := c.last.Load()
	return p != nil && p.right && !now.jumped(p.at)
}

// Proved reports whether the clock was proved right within the last d.
func (c *Clock) Proved(d time.Duration) bool {
	now := instantOf(time.Now())
	return c.right(now) && now.mono-c.last.Load().at.mono <= d
}

type instant struct {
	wall time.Time
	mono time.Duration
}

var began = time.Now()

func instantOf(t time.Time) instant { return instant{t.Round(0), t.Sub(began)} }

// jumped reports whether the wall clock was changed since an earlier instant.
func (i instant) jumped(since instant) bool {
	return (i.wall.Sub(since.wall) - (i.mono - since.mono)).Abs() > clockJump
}
