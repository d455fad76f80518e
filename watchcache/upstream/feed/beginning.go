package feed

import (
	"context"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// beginning lets a feed begin at a past revision, if clients resume from there. The feed lists the
// past state (resourceVersionMatch=Exact) and opens a watch there. Clients return in any order, so
// the feed goes back twice as far as the earliest known resourceVersion, and a little more. If
// upstream has no such history, the feed tries that resourceVersion itself, and then the latest
// known one in the same way, in case a single client was away for long.
//
// Sometimes upstream can list a past state but cannot watch from there, because its watch cache is
// younger than etcd's history. So the cache serves no clients until upstream has accepted the watch
// and the cache has reached upstream's revision. Until then, the feed can begin elsewhere. If a
// read starts the feed, the feed begins at the present. Clients that resume from an earlier
// resourceVersion are then forwarded or get 410.
//
// In a test in which all feeds began at the present, the proxies of 200 informers were replaced one
// after another. Then 23 informers had to relist, and 18 watches stayed connected to upstream.
type beginning struct {
	*Collection
	writer   *Writer
	main     *MainStream
	progress *Progress
	catchUp  *CatchUp
	past     bool     // the feed began in the past
	left     []uint64 // resourceVersions not tried yet
}

// inThePast fills the cache with a past state if upstream has the history where clients resume. at
// is upstream's present resourceVersion. The cache serves clients once reachPresent has returned.
func (b *beginning) inThePast(ctx context.Context, u *Usage, at uint64) bool {
	b.left = u.beginnings(at)
	b.past = b.next(ctx)
	return b.past
}

func (b *beginning) next(ctx context.Context) bool {
	for len(b.left) > 0 {
		rv := b.left[0]
		b.left = b.left[1:]
		err := b.readAt(ctx, rv)
		if err == nil {
			return true
		}
		b.Log.Info("cannot begin where clients resume",
			zap.Uint64("resourceVersion", rv), zap.Error(err))
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			b.left = nil
		}
	}
	return false
}

// elsewhere tries the next past states if upstream lacks the history after the cached state, unless
// the cache has served clients.
func (b *beginning) elsewhere(ctx context.Context) bool {
	if !b.past || closed(b.progress.serves) {
		return false
	}
	b.writer.enter(renewing)
	return b.next(ctx)
}

// reachPresent lets the cache serve clients once it has caught up. After too many tries, it makes
// the loop read the present state.
func (b *beginning) reachPresent(ctx context.Context, at uint64) {
	defer close(b.progress.serves)
	backoff, interrupted := client.Reconnect, false
	for tries := 1; ctx.Err() == nil; tries++ {
		err := b.reach(ctx, at)
		if err == nil {
			return
		}
		b.Log.Info("cache is not up to date", zap.Error(err))
		if tries >= catchUpTries && !interrupted {
			interrupted = b.main.Interrupt(errDiffers)
		}
		client.Sleep(ctx, max(backoff.Step(), client.RetryAfter(err)))
	}
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

func (b *beginning) readAt(ctx context.Context, rv uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readAtTimeout)
	defer cancel()
	end, err := b.progress.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	changes, _, err := b.Shared.Client.List(ctx, b.writer.cache, rv, "Exact")
	if err == nil {
		_, err = b.writer.adopt(changes, rv)
	}
	return err
}

// reach waits until three conditions hold: upstream has accepted the watch, the cache has reached
// rv, and the cache has a template for bookmarks. A streamed state ends with a bookmark; a listed
// state does not.
func (b *beginning) reach(ctx context.Context, rv uint64) error {
	for !b.main.openFor(refusalTime) {
		if !client.Sleep(ctx, refusalTime/10) {
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
	defer cancel()
	if !Reaches(ctx, b.writer.cache, rv, presentStream) {
		if _, err := b.catchUp.To(ctx, rv); err != nil {
			return err
		}
	}
	return b.learnBookmark(ctx)
}

// learnBookmark reads the template for bookmarks from a watch that matches nothing.
func (b *beginning) learnBookmark(ctx context.Context) error {
	if b.writer.cache.Bookmark() != nil {
		return nil
	}
	e, err := b.Shared.Client.FirstBookmark(ctx, b.writer.cache.Resource(), sideWatchSeconds)
	if apierrors.IsInvalid(err) {
		return nil // without streamed states, upstream sends no such bookmark
	}
	if err != nil {
		return err
	}
	_, err = b.writer.bookmark(e)
	return err
}
