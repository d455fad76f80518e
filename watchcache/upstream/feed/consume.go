package feed

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// batchMax is the maximum number of events that are published together. Events that arrive together
// are published together. So each watch wakes up once per batch instead of once per event.
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
		f.alive()
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
			changes = append(changes, change)
		}
	}
}

// consume applies a stream's events to one epoch of the cache until the stream ends. It calls alive
// for every event. If the stream ends cleanly, consume returns nil.
func (f *Feed) consume(s client.Stream, epoch uint64, alive func()) error {
	var batch []watchcache.Change
	var received time.Time // of the first event in batch
	at, _ := f.Standing()
	used := ledger.Uses{At: at}
	apply := func() error {
		err := f.Write(epoch, func() error { return f.cache.Apply(batch, received) })
		f.Uses(f.Owner, used.Take()...)
		clear(batch)
		batch = batch[:0]
		return err
	}
	for {
		e, err := s.Next()
		if err != nil {
			return errors.Join(apply(), client.Ended(err, false))
		}
		alive()
		if len(batch) == 0 {
			received = time.Now()
		}
		switch e.Kind {
		case "BOOKMARK":
			if err := apply(); err != nil {
				return err
			}
			rv, err := f.bookmark(e)
			if err != nil {
				return err
			}
			used.Reached(rv)
			err = f.Write(epoch, func() error {
				f.cache.Advance(rv, time.Now())
				return nil
			})
			if err != nil {
				return err
			}
		case "ERROR":
			return errors.Join(apply(), client.EventError(e, f.Encoding))
		default:
			change, err := f.change(e)
			if err != nil {
				return errors.Join(apply(), err)
			}
			batch = append(batch, change)
			used.Event(change.Object.ResourceVersion())
		}
		if len(batch) == batchMax || !s.Buffered() {
			if err := apply(); err != nil {
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
	o, err := f.cache.Resource().ParseObject(e.Object)
	return watchcache.Change{Deleted: e.Kind == "DELETED", Object: o}, err
}

// bookmark returns a bookmark's resourceVersion. The cache keeps the first bookmark as the template
// for its own.
func (f *Feed) bookmark(e client.Event) (uint64, error) {
	b, rv, err := f.cache.Resource().ParseBookmark(e.Object)
	if err == nil && f.cache.Bookmark() == nil {
		f.cache.SetBookmark(b)
	}
	return rv, err
}

// compact turns the changes that arrived during a list into a state, sorted by key. The last change
// of each object counts.
func compact(changes []watchcache.Change) []*object.Object {
	byKey := func(a, b watchcache.Change) int { return cmp.Compare(a.Object.Key(), b.Object.Key()) }
	if !slices.IsSortedFunc(changes, byKey) {
		slices.SortStableFunc(changes, byKey)
	}
	objects := make([]*object.Object, 0, len(changes))
	for i, c := range changes {
		last := i == len(changes)-1 || changes[i+1].Object.Key() != c.Object.Key()
		if last && !c.Deleted {
			objects = append(objects, c.Object)
		}
	}
	return objects
}
