package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// batchMax is the number of events that are published even if more have arrived.
const batchMax = 256

// consumeInitial reads a stream's initial state (sendInitialEvents), up to the bookmark that ends
// it. It returns the epoch of the following changes.
func (f *Feed) consumeInitial(s client.Stream) (epoch uint64, err error) {
	var changes []watchcache.Change
	for {
		e, err := s.Next()
		if err != nil {
			return 0, client.Ended(err, true)
		}
		f.Alive()
		switch e.Kind {
		case "BOOKMARK":
			rv, err := f.bookmark(e)
			if err != nil {
				return 0, err
			}
			if f.cache.Resource().IsInitialEventsEnd(e.Object) {
				return f.adopt(changes, rv)
			}
		case "ERROR":
			return 0, client.EventError(e, f.Encoding)
		default:
			change, err := f.change(e)
			if err != nil {
				return 0, err
			}
			change.Object = f.cache.Known(change.Object) // so a relist holds no second copy
			changes = append(changes, change)
		}
	}
}

// consume applies a stream's events to one epoch of the cache until the stream ends. It calls alive
// for every event. If the stream ends cleanly, consume returns nil.
func (f *Feed) consume(s client.Stream, epoch uint64, alive func()) error {
	at, _ := f.Position()
	shown := Shown(at)
	var used []uint64 // revisions for the ledger
	apply := func(changes []watchcache.Change, received time.Time) error {
		return f.Write(epoch, func() error { return f.cache.Apply(changes, received) })
	}
	var whole wholeFunc
	if f.cache.Resource().NoWatchCache {
		whole = counted(f.cache, f.Shared.Client)
	}
	events := NewBatch(f.tasks.Context, apply, whole, func(err error) { f.Interrupt(err) })
	defer events.Close()
	publish := func() error {
		err := events.Publish()
		f.Shared.Uses(f.Owner, used...)
		used = used[:0]
		return err
	}
	for {
		e, err := s.Next()
		if err != nil {
			return errors.Join(publish(), client.Ended(err, false))
		}
		alive()
		waiting := 0
		switch e.Kind {
		case "BOOKMARK":
			rv, err := f.bookmark(e)
			if err != nil {
				return errors.Join(publish(), err)
			}
			events.Reached(rv)
			shown.Reached(rv)
			if err := publish(); err != nil {
				return err
			}
			err = f.Write(epoch, func() error {
				f.cache.Advance(rv, time.Now())
				return nil
			})
			if err != nil {
				return err
			}
		case "ERROR":
			return errors.Join(publish(), client.EventError(e, f.Encoding))
		default:
			change, err := f.change(e)
			if err != nil {
				return errors.Join(publish(), err)
			}
			waiting = events.Add(change)
			if rv := change.Object.ResourceVersion(); shown.Reached(rv) {
				used = append(used, rv)
			}
		}
		if waiting >= batchMax || !s.Buffered() {
			if err := publish(); err != nil {
				return err
			}
		}
	}
}

func (f *Feed) change(e client.Event) (watchcache.Change, error) {
	switch e.Kind {
	case "ADDED", "MODIFIED", "DELETED":
	default:
		return watchcache.Change{}, fmt.Errorf("%w: watch event of type %q", object.ErrMalformed, e.Kind)
	}
	r := f.cache.Resource()
	o, err := r.ParseObject(client.AsListed(r, e.Object))
	return watchcache.Change{Deleted: e.Kind == "DELETED", Object: o}, err
}

// bookmark returns a bookmark's resourceVersion. The cache keeps the bookmark as the template for its
// own, if another version of the apiserver writes it in another way.
func (f *Feed) bookmark(e client.Event) (uint64, error) {
	b, rv, err := f.cache.Resource().ParseBookmark(e.Object)
	if err == nil && !f.cache.Bookmark().Same(b) {
		f.cache.SetBookmark(b)
	}
	return rv, err
}
