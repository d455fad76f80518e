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

// failed notes that the stream was lost. If it had been silent, that has been so for as long.
func (f *Feed) failed(err error) {
	since := watchcache.Moment(time.Now())
	if errors.Is(err, errSilent) {
		since = f.lastSign.Load()
	}
	f.refused.Store(client.Answered(err))
	f.lost.CompareAndSwap(0, since)
}

// unreachable tells for how long upstream could not be reached, as far as anybody knows: one that
// refuses a stream answers.
func (f *Feed) unreachable() (age time.Duration) {
	if f.refused.Load() && f.unanswered.Load() == 0 {
		return 0
	}
	age, _ = f.Lost()
	return age
}

// Lost tells for how long upstream could not be reached, if it cannot: what the cache holds
// may be as old. Either the stream is gone, or a freshness run found that nobody answers.
func (f *Feed) Lost() (age time.Duration, lost bool) {
	for _, since := range []int64{f.lost.Load(), f.unanswered.Load()} {
		if since != 0 {
			age, lost = max(age, watchcache.SinceMoment(since)), true
		}
	}
	return age, lost
}

// answered notes what came of asking upstream where it stands. If nobody answered, reads
// will not ask again for a while, so that somebody else has to.
func (f *Feed) answered(ctx context.Context, began time.Time, err error) {
	switch {
	case err == nil:
		f.unanswered.Store(0)
	case client.NoAnswer(err) && ctx.Err() == nil && f.unanswered.CompareAndSwap(0, watchcache.Moment(began)):
		f.health.Doubt()
		f.fresh.running.Go(func() { f.awaitAnswer(ctx) })
	}
}

// awaitAnswer probes until upstream answers, whatever it says, or ctx ends. While upstream is away
// it waits for that with all the others.
func (f *Feed) awaitAnswer(ctx context.Context) {
	for again := servers.NewRetry(f.health); ; {
		end, err := f.health.Turns.Wait(ctx, f.urgency)
		if err != nil {
			return
		}
		if f.unanswered.Load() != 0 { // by the stream, meanwhile
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

// Lost tells, without waiting, for how long upstream could not be reached, if there is a feed of
// the resource that cannot reach it.
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
