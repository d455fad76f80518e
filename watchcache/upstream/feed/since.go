package feed

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
)

// ResumePoints are the resourceVersions that clients resume from, earlier than upstream's present.
// Such clients come from a proxy that has ended, all within seconds. A feed that begins at the
// present has no history for them: they would have to relist, or stay with upstream.
//
// So the feed begins in the past, with one list as of then (Exact) and a watch from there. Clients
// come back in any order, some with earlier resourceVersions. So the feed begins twice as far back
// as the earliest of those known, and a little more. If upstream no longer has that history, the
// feed begins at the earliest itself. One client may come from too long ago: if upstream lacks that
// history, too, the feed tries the latest in the same way.
//
// Upstream may list a past state and lack the history after it: its watch cache is younger than
// etcd's history. So the cache answers no client until upstream has accepted the watch and the
// cache has reached upstream's revision. Until then, the feed can begin elsewhere. A read needs no
// past. If a read starts the feed, clients with an earlier resourceVersion are forwarded or get
// 410.
//
// When feeds always began at the present, and the proxies of two hundred informers were replaced in
// turn, 23 informers had to relist, and 18 watches stayed with upstream.
type ResumePoints struct {
	mu struct {
		sync.Mutex
		earliest, latest uint64 // earliest and latest that clients resume from; 0 if none
	}
	opened atomic.Int64 // moment at which the followed watch was opened, 0 without one
	begun  bool         // the feed began in the past; known to Run alone
	left   []uint64     // beginnings not tried yet; known to Run alone
}

// Note notes where a client resumes. It has no effect after the feed has begun.
func (p *ResumePoints) Note(since uint64) {
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

// LittleMore is how many revisions are added to twice the distance.
const LittleMore = 100

// Beginnings are the resourceVersions to begin at while upstream is at at, the best first.
func (p *ResumePoints) Beginnings(at uint64) (all []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, since := range []uint64{p.mu.earliest, p.mu.latest} {
		if since == 0 || since > at {
			continue
		}
		for _, rv := range []uint64{since - min(at-since+LittleMore, since-1), since} {
			if !slices.Contains(all, rv) {
				all = append(all, rv)
			}
		}
	}
	return all
}

// beginInThePast begins a feed where its clients resume, if upstream has that history. The feed
// answers no client until it has reached the revision that upstream had at the feed's start.
func (f *Feed) beginInThePast(ctx context.Context, upstreamAt uint64) {
	f.past.left = f.past.Beginnings(upstreamAt)
	if !f.begin(ctx) {
		close(f.settled)
		return
	}
	f.past.begun = true
	f.Go(func(ctx context.Context) {
		f.settle(ctx, catchUpTries, func() error { return f.catchUp(ctx, upstreamAt) })
	})
}

// begin fills the cache with the state at the next beginning that upstream can list. It returns
// whether there was such a beginning.
func (f *Feed) begin(ctx context.Context) bool {
	for len(f.past.left) > 0 {
		rv := f.past.left[0]
		f.past.left = f.past.left[1:]
		err := f.readAt(ctx, rv)
		if err == nil {
			return true
		}
		f.Log.Info("cannot begin where clients resume", zap.Uint64("resourceVersion", rv), zap.Error(err))
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			f.past.left = nil
		}
	}
	return false
}

// beginElsewhere begins again if upstream lacks the history after the feed's beginning and no
// client has been answered. It returns whether it began again; otherwise the feed reads the present
// state.
func (f *Feed) beginElsewhere(ctx context.Context) bool {
	if !f.past.begun || closed(f.settled) {
		return false
	}
	f.enter(renewing)
	return f.begin(ctx)
}

const (
	// readAtTimeout bounds the list of a past state.
	readAtTimeout = time.Minute
	// refusalTime is how long upstream may take to refuse a watch whose resourceVersion is too old.
	refusalTime = 150 * time.Millisecond
	// catchUpTries is how often the feed waits for upstream's revision before it begins at the
	// present.
	catchUpTries = 3
)

func (f *Feed) readAt(ctx context.Context, rv uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readAtTimeout)
	defer cancel()
	end, err := f.Health.Turns.Wait(ctx, f.urgency)
	if err != nil {
		return err
	}
	defer end()
	changes, err := f.Client.ListAt(ctx, f.cache.Resource(), rv)
	if err == nil {
		_, err = f.adopt(changes, rv)
	}
	return err
}

// catchUp waits until upstream has accepted a watch from the feed's beginning, and the cache has
// reached rv and knows the form of bookmarks. A streamed state ends with a bookmark; a listed state
// does not.
func (f *Feed) catchUp(ctx context.Context, rv uint64) error {
	for opened := f.past.opened.Load(); opened == 0 || watchcache.SinceMoment(opened) < refusalTime; opened = f.past.opened.Load() {
		if !client.Sleep(ctx, refusalTime/10) {
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	if !f.Reaches(ctx, rv, settleStream) {
		if _, err := f.CatchUp(ctx, rv); err != nil {
			return err
		}
	}
	return f.learnBookmark(ctx)
}

// learnBookmark learns the form of bookmarks from a watch of nothing.
func (f *Feed) learnBookmark(ctx context.Context) error {
	if f.cache.Bookmark() != nil {
		return nil
	}
	path, query := client.Nothing(f.cache.Resource())
	for name, value := range map[string]string{
		"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true",
		"timeoutSeconds": strconv.Itoa(sideWatchSeconds),
	} {
		query.Set(name, value)
	}
	resp, err := f.Client.GetAs(ctx, client.MimeOf(f.Encoding), "probe", f.GVR, path, query)
	if apierrors.IsInvalid(err) {
		return nil // upstream does not stream states, and only streamed states show the form
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
		return client.EventError(e, f.Encoding)
	case e.Kind != "BOOKMARK":
		return fmt.Errorf("%w: watch of nothing shows %s", object.ErrMalformed, e.Kind)
	}
	_, err = f.bookmark(e)
	return err
}
