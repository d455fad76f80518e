package table

import (
	"sync"
	"time"
)

const (
	// rereadTime is the time in which the feed of the rows reads them again. Until then, rows that
	// do not match the rules are not used.
	rereadTime = time.Minute
	// restLeast and restMost limit the time for which upstream answers Tables after fresh rows did
	// not match the rules. Each rest is restGrows times longer than the rest before it.
	restLeast, restMost, restGrows = 5 * time.Minute, 2 * time.Hour, 4
	// forgotten is the time without doubts after which rests are short again.
	forgotten = 6 * time.Hour
)

// doubts are the times at which rows of a cache did not match their rules, in all epochs.
//
// One row may be wrong by chance: it was more than a minute late, or arrived while this machine's
// clock was wrong. Then fresh rows are right, so the feed reads the rows again, in a new epoch. If
// the fresh rows do not match either, the rules are wrong for this upstream. Then upstream answers
// Tables for a while, and the next mismatch makes the feed read the rows again.
type doubts struct {
	mu struct {
		sync.Mutex
		last   time.Time     // the last mismatch
		epoch  uint64        // of the rows that did not match
		retry  time.Time     // rows of that epoch are not used before
		until  time.Time     // no rows are used before
		pause  time.Duration // the last rest
		reread time.Time     // the last request for fresh rows
	}
}

// allow reports whether rows of an epoch may be used.
func (d *doubts) allow(epoch uint64, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.allowLocked(epoch, now)
}

func (d *doubts) allowLocked(epoch uint64, now time.Time) bool {
	return !now.Before(d.mu.until) && (epoch != d.mu.epoch || !now.Before(d.mu.retry))
}

// verdict is the consequence of a mismatch.
type verdict int

const (
	known     verdict = iota // rows are not used already
	reread                   // the feed must read the rows again
	firstRest                // upstream answers Tables for a while
	longerRest
)

// mismatch records that a row does not match the rules.
func (d *doubts) mismatch(epoch uint64, arrived, now time.Time) verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &d.mu
	if !d.allowLocked(epoch, now) {
		return known
	}
	if now.Sub(m.last) > forgotten {
		m.pause = 0
	}
	fresh := epoch != m.epoch && arrived.Sub(m.reread).Abs() < rereadTime
	m.last, m.epoch = now, epoch
	if !fresh {
		m.retry, m.reread = now.Add(rereadTime), now.Round(0) // arrivals have only a wall clock's time
		return reread
	}
	before := m.pause
	m.pause = min(max(restGrows*before, restLeast), restMost)
	m.until = now.Add(m.pause)
	if before == 0 {
		return firstRest
	}
	return longerRest
}
