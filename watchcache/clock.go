package watchcache

import "time"

var began = time.Now()

// Moment is a time in Unix nanoseconds by a clock that nobody sets: it began with the wall clock when the process
// did, and went on with the monotonic one. What is kept for a while would else be kept for ever, or not at all, once
// somebody corrects the machine's time.
func Moment(t time.Time) int64 { return began.UnixNano() + int64(t.Sub(began)) }

// SinceMoment is how long ago a moment was.
func SinceMoment(at int64) time.Duration {
	return time.Duration(Moment(time.Now()) - at)
}
