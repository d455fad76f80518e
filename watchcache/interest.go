package watchcache

import (
	"math"
	"sync"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// interests indexes the open cursors by their narrowest requirements. So with five thousand
// watches, one per node, an event costs the same as with a single watch.
type interests struct {
	resource *object.Resource
	mu       struct {
		sync.Mutex
		cursors map[object.Interest]*cursorSet
		fields  map[int]int // for each field, the number of interests in a value of the field
		count   int
		ahead   map[*Cursor]struct{} // cursors whose starts the log has not reached
		least   uint64               // the earliest of these starts
	}
}

type cursorSet struct{ members []*Cursor }

func (s *cursorSet) add(c *Cursor) {
	c.index = len(s.members)
	s.members = append(s.members, c)
}

func (s *cursorSet) remove(c *Cursor) {
	last := len(s.members) - 1
	moved := s.members[last]
	s.members[c.index], moved.index = moved, c.index
	s.members[last] = nil
	s.members = s.members[:last]
}

func (x *interests) add(c *Cursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.count++
	in := c.filter.Interest()
	set := x.mu.cursors[in]
	if set == nil {
		set = &cursorSet{}
		x.mu.cursors[in] = set
	}
	set.add(c)
	x.countLocked(in, 1)
}

// awaitFloor has the cursor woken once, when the log reaches the cursor's start. Until then, the
// cursor must look at every event, and would be left behind by a log that drops them.
func (x *interests) awaitFloor(c *Cursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if v := c.cache.view.Load(); v == nil || v.rv >= c.floor {
		return // the first poll sees it
	}
	if len(x.mu.ahead) == 0 || c.floor < x.mu.least {
		x.mu.least = c.floor
	}
	x.mu.ahead[c] = struct{}{}
}

// reachedLocked appends the cursors to woken whose starts the log has reached.
func (x *interests) reachedLocked(rv uint64, woken []*Cursor) []*Cursor {
	if len(x.mu.ahead) == 0 || rv < x.mu.least {
		return woken
	}
	x.mu.least = math.MaxUint64
	for c := range x.mu.ahead {
		if c.floor <= rv {
			delete(x.mu.ahead, c)
			woken = append(woken, c)
		} else {
			x.mu.least = min(x.mu.least, c.floor)
		}
	}
	return woken
}

func (x *interests) remove(c *Cursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.count--
	delete(x.mu.ahead, c)
	in := c.filter.Interest()
	set := x.mu.cursors[in]
	if set.remove(c); len(set.members) == 0 {
		delete(x.mu.cursors, in)
	}
	x.countLocked(in, -1)
}

func (x *interests) countLocked(in object.Interest, by int) {
	if in.By >= 0 && in.Value != "" {
		if x.mu.fields[in.By] += by; x.mu.fields[in.By] == 0 {
			delete(x.mu.fields, in.By)
		}
	}
}

func (x *interests) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.count
}

// markAndPublish marks every cursor that may match an event with sequence number from or later, and
// then publishes. It appends the cursors that the writer has to signal to woken.
//
// Marking and publishing share one lock. Otherwise a new watch could load the view without the
// events, and also miss their marks. A cursor with an earlier mark may need a signal, too: it may
// be reading that mark right now, with a view that lacks the events.
func (x *interests) markAndPublish(
	next *view, from uint64, publish func(), woken []*Cursor,
) []*Cursor {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.count > 0 && from < next.end {
		woken = x.mu.cursors[object.Interest{}].mark(from, next.end-1, from, woken)
		for seq := from; seq < next.end; seq++ {
			e := next.event(seq)
			o := e.Object
			woken = x.inLocked(object.ByNamespace, o.Namespace()).mark(seq, seq, from, woken)
			woken = x.inLocked(object.ByName, o.Key()).mark(seq, seq, from, woken)
			for i := range x.mu.fields {
				value := o.Value(x.resource, i)
				woken = x.inLocked(i, value).mark(seq, seq, from, woken)
				if e.Prev != nil && e.Prev.Value(x.resource, i) != value {
					was := x.inLocked(i, e.Prev.Value(x.resource, i))
					woken = was.mark(seq, seq, from, woken)
				}
			}
		}
	}
	publish()
	return x.reachedLocked(next.rv, woken)
}

func (x *interests) inLocked(field int, value string) *cursorSet {
	if value == "" {
		return nil
	}
	return x.mu.cursors[object.Interest{By: field, Value: value}]
}

// mark marks the cursors for events between first and last. It appends a cursor to woken unless the
// cursor already had a mark at published or later.
func (s *cursorSet) mark(first, last, published uint64, woken []*Cursor) []*Cursor {
	if s == nil {
		return woken
	}
	for _, c := range s.members {
		if c.latest.Swap(last) < published {
			woken = append(woken, c)
		}
		c.pending.CompareAndSwap(0, first)
	}
	return woken
}

func (x *interests) each(visit func(*Cursor)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.mu.cursors {
		for _, c := range s.members {
			visit(c)
		}
	}
}
