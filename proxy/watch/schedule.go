package watch

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

const (
	// Like kube-apiserver, a watch sends a bookmark about once a minute, and shortly before it
	// times out.
	bookmarkEvery     = time.Minute
	bookmarkJitter    = time.Second
	bookmarkBeforeEnd = 2 * time.Second
	// bookmarkAgain is the pause before a bookmark at the end is tried again because its
	// resourceVersion would not be new. A proxy in front waits for this bookmark while the cache
	// here is being proved up to date.
	bookmarkAgain = bookmarkBeforeEnd / 4
	// A watch whose client asks for no lifetime has a random one, of lifetimeFloor to twice that.
	lifetimeFloor = 30 * time.Minute
)

// schedule says when a watch ends, and when it sends bookmarks.
type schedule struct {
	deadline time.Time
	bookmark time.Time // time of the next bookmark
	// periodic means that the watch sends bookmarks. Kube-apiserver sends none for resources that
	// it watches in etcd.
	periodic bool
	drains   bool            // deadline already includes the drain
	draining context.Context //nolint:containedctx // it is the server's
}

func (s *schedule) begin(now time.Time, p *Plan, periodic bool) {
	s.deadline = now.Add(cmp.Or(p.Lifetime, lifetimeFloor+rand.N(lifetimeFloor)))
	s.bookmark = s.nextBookmark(now)
	s.periodic = p.Bookmarks && periodic
}

// next returns the time at which the watch has work even without events.
func (s *schedule) next() time.Time {
	if s.periodic && s.bookmark.Before(s.deadline) {
		return s.bookmark
	}
	return s.deadline
}

// nextBookmark returns the time of the next bookmark: the usual, or shortly before the deadline.
func (s *schedule) nextBookmark(now time.Time) time.Time {
	regular := now.Add(bookmarkEvery - bookmarkJitter + rand.N(2*bookmarkJitter))
	if last := s.deadline.Add(-bookmarkBeforeEnd); last.After(now) && last.Before(regular) {
		return last
	}
	return regular
}

// takesBookmark reports whether a bookmark is due, and its resourceVersion is new. It plans the
// next one.
func (s *schedule) takesBookmark(now time.Time, isNew bool) bool {
	if !s.periodic || now.Before(s.bookmark) {
		return false
	}
	s.bookmark = s.nextBookmark(now)
	if !isNew && !now.Before(s.deadline.Add(-bookmarkBeforeEnd)) {
		s.bookmark = now.Add(bookmarkAgain)
	}
	return isNew
}

// over reports whether the watch has to end. Once the server drains, the watch ends within share.
func (s *schedule) over(now time.Time, share time.Duration) bool {
	if !s.drains && s.draining.Err() != nil {
		s.drains = true
		if end := now.Add(share); end.Before(s.deadline) {
			s.deadline = end
		}
	}
	return !now.Before(s.deadline)
}
