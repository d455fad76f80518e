package feed

import (
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Signs records what a feed knows of its upstream: when it last heard from it (by an event, a
// bookmark or a response), and since when it has lost it. All times are moments.
type Signs struct {
	lost       atomic.Int64 // when the stream was lost; 0 while it works
	refused    atomic.Bool  // upstream responded, but refused the stream
	unanswered atomic.Int64 // when the first unanswered probe was sent; 0 if there is none
	last       atomic.Int64 // when the last sign of life came
}

// Alive records a sign of life. It clears the loss of upstream.
func (s *Signs) Alive() {
	s.Touch()
	s.lost.Store(0)
	s.unanswered.Store(0)
}

// Touch records a sign of life that does not end a loss.
func (s *Signs) Touch() { s.last.Store(watchcache.Moment(time.Now())) }

// Quiet is the time since upstream's last sign of life.
func (s *Signs) Quiet() time.Duration { return watchcache.SinceMoment(s.last.Load()) }

// Failed records that the stream was lost: at upstream's last sign of life if it fell silent.
func (s *Signs) Failed(err error, silent bool) {
	since := watchcache.Moment(time.Now())
	if silent {
		since = s.last.Load()
	}
	s.refused.Store(client.Answered(err))
	s.lost.CompareAndSwap(0, since)
}

// Unanswered records that a request sent at began has no response. True means it is the first one.
func (s *Signs) Unanswered(began time.Time) bool {
	return s.unanswered.CompareAndSwap(0, watchcache.Moment(began))
}

// Answered records that upstream has responded to a request.
func (s *Signs) Answered() { s.unanswered.Store(0) }

// Waits reports whether a request has no response.
func (s *Signs) Waits() bool { return s.unanswered.Load() != 0 }

// Unreachable returns for how long upstream has not responded, as far as the feed knows. The
// refusal of a stream is a response, too.
func (s *Signs) Unreachable() (age time.Duration) {
	if s.refused.Load() && !s.Waits() {
		return 0
	}
	age, _ = s.Lost()
	return age
}

// Lost reports whether the feed has lost upstream: the stream broke, or a probe was not answered.
// age is the time since then. The cache may be out of date by that much.
func (s *Signs) Lost() (age time.Duration, lost bool) {
	for _, since := range []int64{s.lost.Load(), s.unanswered.Load()} {
		if since != 0 {
			age, lost = max(age, watchcache.SinceMoment(since)), true
		}
	}
	return age, lost
}
