package feed

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Usage is what clients want of a feed: how long ago they used it, and where they resume.
type Usage struct {
	asked time.Time    // when the first client asked for the resource
	last  atomic.Int64 // moment of the last use
	mu    struct {
		sync.Mutex
		earliest, latest uint64 // resourceVersions that clients resume from; 0 if there are none
	}
}

// Note records that a client uses the feed. since is the resourceVersion that it resumes from, or
// 0. After the feed has begun, since has no effect.
func (u *Usage) Note(since uint64) {
	u.last.Store(watchcache.Moment(time.Now()))
	if since == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.latest = max(u.mu.latest, since)
	if u.mu.earliest == 0 || since < u.mu.earliest {
		u.mu.earliest = since
	}
}

// Idle is the time since the feed with this cache was last used. An open watch uses it.
func (u *Usage) Idle(cache *watchcache.Cache) time.Duration {
	if cache.Stats().Cursors > 0 {
		u.Note(0)
	}
	return watchcache.SinceMoment(u.last.Load())
}

// Age is the time since a client asked for the feed.
func (u *Usage) Age() time.Duration { return time.Since(u.asked) }

// littleMore is added to the distance between the present and the point where a client resumes. A
// feed begins that many revisions before this point.
const littleMore = 100

// beginnings returns the resourceVersions at which a feed may begin, the best first. at is
// upstream's present resourceVersion.
func (u *Usage) beginnings(at uint64) (all []uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, since := range []uint64{u.mu.earliest, u.mu.latest} {
		if since == 0 || since > at {
			continue
		}
		for _, rv := range []uint64{since - min(at-since+littleMore, since-1), since} {
			if !slices.Contains(all, rv) {
				all = append(all, rv)
			}
		}
	}
	return all
}
