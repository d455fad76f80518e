package feed

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// past is where the feed begins if its clients resume from revisions before upstream's present one.
//
// The feed lists a past state (Exact) and opens a watch from there. Clients come back in any order,
// and later ones may resume from earlier resourceVersions. So the feed goes back twice as far as
// the earliest one known, and a little more. If upstream no longer has that history, the feed
// begins at the earliest one itself. If upstream does not have that either, perhaps because a
// single client was away for long, the feed tries the latest one in the same way.
//
// Upstream can sometimes list a past state but not watch from there, because its watch cache is
// younger than etcd's history. So the cache answers no client until upstream has accepted the watch
// and the cache has reached upstream's revision. Until then, the feed can begin elsewhere. A read
// needs no past state. If a read starts the feed, clients with an earlier resourceVersion are
// forwarded or get 410.
//
// Without this, when the proxies of two hundred informers were replaced one after another, 23
// informers had to relist, and 18 watches stayed connected to upstream.
type past struct {
	store.ResumePoints
	opened atomic.Int64 // when the followed watch was opened, as a moment; 0 if there is none
	begun  bool         // the feed began in the past; used by Run alone
	left   []uint64     // beginnings not tried yet; used by Run alone
}

// beginInThePast starts a feed where its clients resume, if upstream has that history. The feed
// does not answer clients until it has reached upstreamAt, the revision that upstream had when the
// feed started.
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
// false if there is none.
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

// beginElsewhere starts again at another beginning if upstream lacks the history after this one and
// no client has been answered. It returns whether it did; if not, the feed reads the present state.
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
	// refusalTime is the time within which upstream refuses a watch whose resourceVersion is too
	// old.
	refusalTime = 150 * time.Millisecond
	// catchUpTries is the number of times that the feed waits for upstream's revision before it
	// begins at the present.
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

// catchUp waits until three things hold: upstream has accepted a watch from the feed's beginning,
// the cache has reached rv, and the form of bookmarks is known. A streamed state ends with a
// bookmark; a listed state does not.
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

// learnBookmark learns the form of bookmarks from a watch that matches nothing.
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
	resp, err := f.Client.GetAs(ctx, client.AcceptOf(f.Encoding), "probe", f.GVR, path, query)
	if apierrors.IsInvalid(err) {
		return nil // upstream does not stream states, and only a streamed state shows the form
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // the bookmark has been read
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
