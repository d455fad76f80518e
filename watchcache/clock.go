package watchcache

import "time"

var began = time.Now()

// Moment returns a time in Unix nanoseconds that ignores changes of the machine's clock. It is the
// wall clock at the process's start plus the monotonic time since then. With wall-clock times, a
// clock correction could make entries expire immediately or never.
func Moment(t time.Time) int64 { return began.UnixNano() + int64(t.Sub(began)) }

// SinceMoment returns the time since a moment.
func SinceMoment(at int64) time.Duration {
	return time.Duration(Moment(time.Now()) - at)
}
