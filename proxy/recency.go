package proxy

import (
	"context"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// largeState is how many objects a state must have for it to be written while
	// it is still unknown how recent it is. To find that out takes some time only
	// for large collections, and to read them takes the client as long.
	largeState = 500
	// recencyPatience is how long the answer is waited for before the writing begins.
	recencyPatience = 50 * time.Millisecond
	// recencyWait bounds the wait. It is longer than freshWait, for a crowd that
	// is being sent a large state leaves little time for anything else.
	recencyWait = 15 * time.Second
)

// recency is what is being found out about the state that a watch begins with:
// the resourceVersion that the client has to have been told before it may take
// the state for the most recent.
//
// Until then the watch goes on as any other: the state at hand, then what changed
// since, which leads to the same as a later state would have. Only the bookmark
// that ends the state has to wait. A nil recency is for watches that have nothing
// to wait for.
type recency struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when rv or err is set
	rv     uint64
	err    error
	learnt bool // done was seen
}

// beginning returns the state that a watch begins with, and what is not known yet
// of its recency.
func (w *watching) beginning(ctx context.Context) (watchcache.Snapshot, *recency, error) {
	state, err := w.cache.Snapshot()
	if w.rvGiven || w.timeout || !w.state || !w.bookmarks || err != nil || state.Len() < largeState {
		state, err = w.fresh(ctx)
		return state, nil, err
	}
	r := &recency{done: make(chan struct{})}
	ctx, r.cancel = context.WithTimeout(ctx, recencyWait)
	go func() {
		defer close(r.done)
		var recent watchcache.Snapshot
		recent, r.err = w.feed.Fresh(ctx)
		r.rv = recent.ResourceVersion()
	}()
	patience := time.NewTimer(recencyPatience)
	defer patience.Stop()
	select {
	case <-r.done:
	case <-patience.C:
		return state, r, nil
	}
	r.stop()
	if r.err != nil {
		return state, nil, errStale
	}
	state, err = w.cache.Snapshot()
	return state, nil, err
}

// known is closed when learn has something to tell.
func (r *recency) known() <-chan struct{} {
	if r == nil || r.learnt {
		return nil
	}
	return r.done
}

// learn takes note of the answer, once known.
func (r *recency) learn() error {
	r.learnt = true
	return r.err
}

// reached tells whether a client that was told everything up to a position knows
// the most recent state.
func (r *recency) reached(position uint64) bool { return r.learnt && position >= r.rv }

// stop ends the search for an answer.
func (r *recency) stop() {
	if r != nil {
		r.cancel()
		<-r.done
	}
}
