package upstream

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// failed notes that the stream was lost. A silent stream counts as lost since its last sign of
// life.
func (f *Feed) failed(err error) {
	since := watchcache.Moment(time.Now())
	if errors.Is(err, errSilent) {
		since = f.lastSign.Load()
	}
	f.refused.Store(client.Answered(err))
	f.lost.CompareAndSwap(0, since)
}

// unreachable tells for how long upstream has not answered, as far as the feed knows. An upstream
// that refuses a stream answers.
func (f *Feed) unreachable() (age time.Duration) {
	if f.refused.Load() && f.unanswered.Load() == 0 {
		return 0
	}
	age, _ = f.Lost()
	return age
}

// Lost tells whether upstream cannot be reached, and since when: the cache may be that far
// out of date. Either the stream broke, or a freshness run got no answer.
func (f *Feed) Lost() (age time.Duration, lost bool) {
	for _, since := range []int64{f.lost.Load(), f.unanswered.Load()} {
		if since != 0 {
			age, lost = max(age, watchcache.SinceMoment(since)), true
		}
	}
	return age, lost
}

// answered notes whether upstream answered a probe. After no answer, reads stop probing for a
// while; awaitAnswer probes instead.
func (f *Feed) answered(ctx context.Context, began time.Time, err error) {
	switch {
	case err == nil:
		f.unanswered.Store(0)
	case client.NoAnswer(err) && ctx.Err() == nil && f.unanswered.CompareAndSwap(0, watchcache.Moment(began)):
		f.health.Doubt()
		f.fresh.running.Go(func() { f.awaitAnswer(ctx) })
	}
}

// awaitAnswer probes until upstream answers anything, or ctx ends. While upstream is away,
// it waits for its turn as all feeds do.
func (f *Feed) awaitAnswer(ctx context.Context) {
	for again := servers.NewRetry(f.health); ; {
		end, err := f.health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return
		}
		if f.unanswered.Load() != 0 { // the stream may have answered meanwhile
			probing, cancel := context.WithTimeout(ctx, askTimeout)
			_, err = f.client.Probe(probing, f.cache.Resource())
			cancel()
		}
		end()
		if !client.NoAnswer(err) {
			f.unanswered.Store(0)
			return
		}
		if !again.After(ctx, 0, err, servers.Resume) {
			return
		}
	}
}

// Lost tells, without waiting, for how long the feed of a resource has not reached upstream; 0 if
// it does, or if there is no feed.
func (fs *Feeds) Lost(gvr schema.GroupVersionResource) (age time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, encoding := range []object.Encoding{object.JSON, object.Protobuf} {
		if f := fs.mu.feeds[feedKey{gvr, encoding}]; f != nil {
			age = max(age, f.unreachable())
		}
	}
	return age
}
