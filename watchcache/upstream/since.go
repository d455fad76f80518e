package upstream

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// resumePoints is where a feed could begin that clients go on from an earlier state than upstream's:
// those of another proxy that has ended, or of this one before it was restarted without a
// saved cache. A feed that begins at the present has nothing for them; they would have to
// read all again, or be forwarded and stay with upstream. One list as of then, and the watch
// from there, serves any number of them.
//
// Others come later, and some of them from earlier: they lost their watches one after
// another, and come back in any order. So the feed begins twice as far back as the first of
// them and a little more, if upstream still tells what has happened since, which may be less
// than what it lists. Somebody may come from so long ago that upstream has forgotten it; that is
// not to be the others' loss, so the latest is tried, too.
type resumePoints struct {
	mu struct {
		sync.Mutex
		earliest, latest uint64 // what clients want to go on from; 0 if none does
	}
	opened atomic.Int64 // moment at which the watch that the feed follows was opened, 0 if there is none
	trying atomic.Bool  // the feed has begun there and answers nobody yet
	left   []uint64     // where it could begin yet; known to run alone
}

// noteResumeRV notes from where a client goes on. It is of use until the feed begins.
func (p *resumePoints) noteResumeRV(since uint64) {
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

// littleMore is how many revisions a feed begins earlier than at twice the way.
const littleMore = 100

// beginnings are the resourceVersions to begin at, if upstream is at at, the best first.
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

// beginInThePast begins a feed where its clients want to go on, if upstream lets it. Nobody is
// answered before it has got to where upstream was when it started.
func (f *Feed) beginInThePast(ctx context.Context, upstreamAt uint64) {
	f.past.left = f.past.beginnings(upstreamAt)
	if !f.begin(ctx) {
		close(f.settled)
		return
	}
	f.past.trying.Store(true)
	f.fresh.running.Go(func() {
		defer close(f.settled)
		defer f.past.trying.Store(false)
		f.catchUp(f.fresh.ctx, upstreamAt)
	})
}

// begin makes the state at the next resourceVersion that upstream lists the cache's. It tells
// whether there is one.
func (f *Feed) begin(ctx context.Context) bool {
	for len(f.past.left) > 0 {
		rv := f.past.left[0]
		f.past.left = f.past.left[1:]
		err := f.readAt(ctx, rv)
		if err == nil {
			return true
		}
		f.log.Info("cannot begin where clients want to go on", zap.Uint64("resourceVersion", rv), zap.Error(err))
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			f.past.left = nil
		}
	}
	return false
}

// beginElsewhere begins again if upstream does not tell what has happened since the feed's
// beginning, and nobody has been answered. It tells whether it did; else the present is to be read.
func (f *Feed) beginElsewhere(ctx context.Context) bool {
	if !f.past.trying.Load() {
		return false
	}
	f.synced, f.newEpoch = false, true
	return f.begin(ctx)
}

const (
	// readAtTimeout bounds such a list.
	readAtTimeout = time.Minute
	// refusalTime is how long a watch may take to say that its resourceVersion is too old.
	refusalTime = 150 * time.Millisecond
	// catchUpTries is how often the state at the start is waited for before the feed begins at the
	// present.
	catchUpTries = 3
)

func (f *Feed) readAt(ctx context.Context, rv uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readAtTimeout)
	defer cancel()
	end, err := f.health.Turns.Wait(ctx, f.urgency)
	if err != nil {
		return err
	}
	defer end()
	changes, err := f.client.ListAt(ctx, f.cache.Resource(), rv)
	if err == nil {
		_, err = f.adopt(changes, rv)
	}
	return err
}

// catchUp waits until a watch from the feed's beginning was accepted, the cache has got to rv,
// and it knows what bookmarks look like: the end of a state that is streamed would have told.
func (f *Feed) catchUp(ctx context.Context, rv uint64) {
	backoff := servers.Reconnect
	for try := 1; ctx.Err() == nil; try++ {
		for opened := f.past.opened.Load(); opened == 0 || watchcache.SinceMoment(opened) < refusalTime; opened = f.past.opened.Load() {
			if !client.Sleep(ctx, refusalTime/10) {
				return
			}
		}
		var err error
		if !f.reaches(ctx, rv, settleStream) {
			_, err = f.reach(ctx, &question{rv: rv, era: ledger.NoEra}, true)
		}
		if err == nil {
			err = f.learnBookmark(ctx)
		}
		if err == nil {
			return
		}
		f.log.Info("cache has not caught up", zap.Uint64("resourceVersion", rv), zap.Error(err))
		if try == catchUpTries {
			f.interrupt(errDiffers)
		}
		client.Sleep(ctx, max(backoff.Step(), client.RetryAfter(err)))
	}
}

// learnBookmark learns it from a watch of nothing.
func (f *Feed) learnBookmark(ctx context.Context) error {
	if f.cache.Bookmark() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	path, query := client.Nothing(f.cache.Resource())
	for name, value := range map[string]string{
		"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true",
		"timeoutSeconds": strconv.Itoa(sideWatchSeconds),
	} {
		query.Set(name, value)
	}
	resp, err := f.client.GetAs(ctx, client.MimeOf(f.encoding), "probe", f.gvr, path, query)
	if apierrors.IsInvalid(err) {
		return nil // upstream does not stream states, and it is known by its bookmarks only
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // what matters was read
	e, err := client.NewStream(resp.Body, f.cache.Resource()).Next()
	switch {
	case err != nil:
		return client.Ended(err, true)
	case e.Kind == "ERROR":
		return client.EventError(e, f.encoding)
	case e.Kind != "BOOKMARK":
		return fmt.Errorf("%w: watch of nothing shows %s", object.ErrMalformed, e.Kind)
	}
	_, err = f.bookmark(e)
	return err
}
