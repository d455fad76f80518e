package watchcache

import "time"

var began = time.Now()

// Moment is a time in Unix nanoseconds that ignores changes of the machine's clock: the wall clock
// at the process's start plus monotonic time. With wall-clock times, a correction of the clock
// would make entries stay for ever or vanish at once.
func Moment(t time.Time) int64 { return began.UnixNano() + int64(t.Sub(began)) }

// SinceMoment is how long ago a moment was.
func SinceMoment(at int64) time.Duration {
	return time.Duration(Moment(time.Now()) - at)
}
