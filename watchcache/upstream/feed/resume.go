package feed

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// resumePoints selects the revision at which a feed begins, if clients resume from revisions before
// upstream's present revision.
//
// The feed lists a past state (resourceVersionMatch=Exact) and opens a watch there. Clients return
// in any order, and later clients may resume from earlier resourceVersions. So the feed goes back
// twice as far as the earliest known resourceVersion, and a little more. If upstream has no such
// history, the feed begins at the earliest known resourceVersion itself. If upstream lacks that
// history, too, the feed tries the latest known resourceVersion in the same way. That helps if a
// single client was away for long.
//
// Sometimes upstream can list a past state but cannot watch from there, because its watch cache is
// younger than etcd's history. So the cache serves no clients until upstream has accepted the watch
// and the cache has reached upstream's revision. Until then, the feed can begin elsewhere. If a
// read starts the feed, the feed begins at the present. Clients that resume from an earlier
// resourceVersion are then forwarded or get 410.
//
// In a test in which all feeds began at the present, the proxies of 200 informers were replaced one
// after another. Then 23 informers had to relist, and 18 watches stayed connected to upstream.
type resumePoints struct {
	opened atomic.Int64 // moment when the followed watch opened; 0 without a watch
	begun  bool         // the feed began in the past; used by Run only
	left   []uint64     // resourceVersions not tried yet; used by Run only

	mu struct {
		sync.Mutex
		earliest, latest uint64 // resourceVersions that clients resume from; 0 if there are none
	}
}

// note records a resourceVersion that a client resumes from. Calls have no effect after the feed
// has begun.
func (p *resumePoints) note(since uint64) {
	if since == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.latest = max(p.mu.latest, since)
	if p.mu.earliest == 0 || since < p.mu.earliest {
		p.mu.earliest = since
	}
}

// littleMore is added to the distance between the present and the point where a client resumes. A
// feed begins that many revisions before this point.
const littleMore = 100

// beginnings returns the resourceVersions at which a feed may begin, the best first. at is
// upstream's present resourceVersion.
func (p *resumePoints) beginnings(at uint64) (all []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, since := range []uint64{p.mu.earliest, p.mu.latest} {
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

// beginInThePast starts a feed at a past resourceVersion if upstream has that history. The feed
// serves no clients until it has reached upstreamAt, upstream's revision at its start.
func (f *Feed) beginInThePast(ctx context.Context, upstreamAt uint64) {
	f.resume.left = f.resume.beginnings(upstreamAt)
	if !f.begin(ctx) {
		close(f.life.serves)
		return
	}
	f.resume.begun = true
	f.Go(func(ctx context.Context) { f.reachPresent(ctx, upstreamAt) })
}

// reachPresent lets the cache serve clients once it has caught up. After too many tries, it makes the run
// loop read the present state.
func (f *Feed) reachPresent(ctx context.Context, upstreamAt uint64) {
	defer close(f.life.serves)
	backoff, interrupted := client.Reconnect, false
	for tries := 1; ctx.Err() == nil; tries++ {
		err := f.catchUp(ctx, upstreamAt)
		if err == nil {
			return
		}
		f.Log.Info("cache is not up to date", zap.Error(err))
		if tries >= catchUpTries && !interrupted {
			interrupted = f.Interrupt(errDiffers)
		}
		client.Sleep(ctx, max(backoff.Step(), client.RetryAfter(err)))
	}
}

// begin fills the cache with the first past state in f.resume.left that upstream can list. It returns
// false if there is none.
func (f *Feed) begin(ctx context.Context) bool {
	for len(f.resume.left) > 0 {
		rv := f.resume.left[0]
		f.resume.left = f.resume.left[1:]
		err := f.readAt(ctx, rv)
		if err == nil {
			return true
		}
		f.Log.Info("cannot begin where clients resume", zap.Uint64("resourceVersion", rv), zap.Error(err))
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			f.resume.left = nil
		}
	}
	return false
}

// beginElsewhere tries the next past states, unless the cache has served clients. It is called if
// upstream lacks the history after the cached state. If it returns false, the feed reads the
// present state.
func (f *Feed) beginElsewhere(ctx context.Context) bool {
	if !f.resume.begun || closed(f.life.serves) {
		return false
	}
	f.enter(renewing)
	return f.begin(ctx)
}

const (
	// readAtTimeout limits the duration of listing a past state.
	readAtTimeout = time.Minute
	// refusalTime is the time within which upstream rejects a watch whose resourceVersion is too
	// old.
	refusalTime = 150 * time.Millisecond
	// catchUpTries is the number of attempts to reach upstream's revision. After these, the feed
	// begins at the present.
	catchUpTries = 3
	// presentStream is how long a feed waits for the stream to deliver the changes since the past
	// state. Then the feed opens a side watch.
	presentStream = 100 * time.Millisecond
)

func (f *Feed) readAt(ctx context.Context, rv uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readAtTimeout)
	defer cancel()
	end, err := f.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	changes, _, err := f.Shared.Client.List(ctx, f.cache, rv, "Exact")
	if err == nil {
		_, err = f.adopt(changes, rv)
	}
	return err
}

// catchUp waits until three conditions hold: upstream has accepted the watch, the cache has reached
// rv, and the cache has a template for bookmarks. A streamed state ends with a bookmark; a listed
// state does not.
func (f *Feed) catchUp(ctx context.Context, rv uint64) error {
	for opened := f.resume.opened.Load(); opened == 0 || watchcache.SinceMoment(opened) < refusalTime; opened = f.resume.opened.Load() {
		if !client.Sleep(ctx, refusalTime/10) {
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	if !f.Reaches(ctx, rv, presentStream) {
		if _, err := f.CatchUp(ctx, rv); err != nil {
			return err
		}
	}
	return f.learnBookmark(ctx)
}

// learnBookmark reads a bookmark from a watch that matches nothing. The cache uses it as the
// template for its own bookmarks.
func (f *Feed) learnBookmark(ctx context.Context) error {
	if f.cache.Bookmark() != nil {
		return nil
	}
	e, err := f.Shared.Client.FirstBookmark(ctx, f.cache.Resource(), sideWatchSeconds)
	if apierrors.IsInvalid(err) {
		return nil // without streamed states, upstream sends no such bookmark
	}
	if err != nil {
		return err
	}
	_, err = f.bookmark(e)
	return err
}
