package upstream

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// want notes from where a client goes on. It is of use until the feed begins.
func (f *Feed) want(since uint64) {
	for since > 0 {
		was := f.since.Load()
		if was > 0 && was <= since || f.since.CompareAndSwap(was, since) {
			return
		}
	}
}

// beginAt begins a feed at an earlier state than upstream's, from which clients want to go
// on: those of another proxy that has ended, or of this one before it was restarted without
// a saved cache. A feed that begins at the present has nothing for them; they would have to
// read all again, or be forwarded and stay with upstream. One list as of then, and the watch
// from there, serves any number of them.
//
// Others come later, and some of them from earlier: they lost their watches one after another, and come back in any order.
// So the feed begins twice as far back as the first of them and a little more, if upstream still knows that.
//
// Nobody is answered before the watch had a moment to bring what has happened since. If
// upstream does not tell any more what was then, the feed begins as any.
func (f *Feed) beginAt(ctx context.Context, since, upstreamAt uint64) {
	if since == 0 || since > upstreamAt {
		close(f.settled)
		return
	}
	if earlier := since - min(upstreamAt-since+littleMore, since-1); !f.readAt(ctx, earlier) && (earlier == since || !f.readAt(ctx, since)) {
		close(f.settled)
		return
	}
	f.fresh.running.Go(func() {
		defer close(f.settled)
		f.reaches(f.fresh.ctx, upstreamAt, catchUp)
	})
}

// littleMore is how many revisions a feed begins earlier than at twice the way.
const littleMore = 100

// catchUp is how long the watch of a feed that began in the past has to bring what has
// happened since. Where nothing has, there is nothing that could be waited for.
const catchUp = 250 * time.Millisecond

// readAt makes the state at a resourceVersion the cache's first, and tells whether it could.
func (f *Feed) readAt(ctx context.Context, rv uint64) bool {
	end, err := f.turns.wait(ctx)
	if err != nil {
		return false
	}
	defer end()
	changes, err := f.client.listAt(ctx, f.cache.Resource(), rv)
	if err == nil {
		_, err = f.adopt(changes, rv)
	}
	if err != nil {
		f.log.Info("cannot begin where clients want to go on", zap.Uint64("resourceVersion", rv), zap.Error(err))
	}
	return err == nil
}
