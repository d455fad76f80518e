package table

import (
	"sync"
	"time"
)

const (
	// rereadTime is the time in which the feed of the rows reads them again. Until then, rows that
	// do not match the rules are not used.
	rereadTime = time.Minute
	// restTime is the time for which upstream answers Tables after fresh rows did not match the rules.
	restTime = time.Hour
)

// doubts are the times at which rows of a cache did not match their rules, in all epochs.
//
// One row may be wrong by chance: it was more than a minute late, or arrived while this machine's
// clock was wrong. Then fresh rows are right, so the feed reads the rows again, in a new epoch. If
// the fresh rows do not match either, the rules are wrong for this upstream. Then upstream answers
// Tables for restTime, and the next mismatch makes the feed read the rows again.
type doubts struct {
	mu struct {
		sync.Mutex
		epoch  uint64    // of the rows that did not match
		reread time.Time // the last request for fresh rows
		until  time.Time // no rows are used before
	}
}

// allow reports whether rows of an epoch may be used.
func (d *doubts) allow(epoch uint64, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.allowLocked(epoch, now)
}

func (d *doubts) allowLocked(epoch uint64, now time.Time) bool {
	return !now.Before(d.mu.until) && (epoch != d.mu.epoch || now.Sub(d.mu.reread) >= rereadTime)
}

// verdict is the consequence of a mismatch.
type verdict int

const (
	known    verdict = iota // rows are not used already
	reread                  // the feed must read the rows again
	rejected                // upstream answers Tables for a while
)

// mismatch records that a row does not match the rules.
func (d *doubts) mismatch(epoch uint64, arrived, now time.Time) verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &d.mu
	if !d.allowLocked(epoch, now) {
		return known
	}
	fresh := epoch != m.epoch && arrived.Sub(m.reread).Abs() < rereadTime
	m.epoch = epoch
	if fresh {
		m.until = now.Add(restTime)
		return rejected
	}
	m.reread = now
	return reread
}
