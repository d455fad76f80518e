package watchcache

import (
	"sync"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// interest is a watch's narrowest requirement: events that cannot match it do not
// wake the watch. Only one applies: key, then field value, then namespace.
type interest struct {
	key       string
	field     int    // index into Resource.Fields, if value is set
	value     string // a field equality; "" narrows nothing
	namespace string
}

// byValue tells whether a field value is the narrowest.
func (in interest) byValue() bool { return in.key == "" && in.value != "" }

// interests indexes open cursors by their interest. An event visits
// the cursors in the four places where it could match, and no others: with five
// thousand watches, one per node, an event costs as much as with one.
type interests struct {
	resource *object.Resource
	mu       struct {
		sync.Mutex
		all        cursorSet
		namespaces map[string]*cursorSet
		keys       map[string]*cursorSet
		values     map[fieldValue]*cursorSet
		fields     map[int]int // how many cursors are in values, by field
		count      int
	}
}

type fieldValue struct {
	field int
	value string
}

// cursorSet is an unordered set; each cursor knows its place in it.
type cursorSet struct{ cursors []*Cursor }

func (s *cursorSet) add(c *Cursor) {
	c.place = len(s.cursors)
	s.cursors = append(s.cursors, c)
}

func (s *cursorSet) remove(c *Cursor) {
	last := len(s.cursors) - 1
	moved := s.cursors[last]
	s.cursors[c.place], moved.place = moved, c.place
	s.cursors[last] = nil
	s.cursors = s.cursors[:last]
}

func (x *interests) add(c *Cursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.keys == nil {
		x.mu.namespaces = map[string]*cursorSet{}
		x.mu.keys = map[string]*cursorSet{}
		x.mu.values = map[fieldValue]*cursorSet{}
		x.mu.fields = map[int]int{}
	}
	if c.filter.interest.byValue() {
		x.mu.fields[c.filter.interest.field]++
	}
	x.setLocked(c.filter.interest).add(c)
	x.mu.count++
}

func (x *interests) remove(c *Cursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	in := c.filter.interest
	set := x.setLocked(in)
	set.remove(c)
	x.mu.count--
	if in.byValue() {
		if x.mu.fields[in.field]--; x.mu.fields[in.field] == 0 {
			delete(x.mu.fields, in.field)
		}
	}
	if len(set.cursors) > 0 {
		return
	}
	switch {
	case in.key != "":
		delete(x.mu.keys, in.key)
	case in.value != "":
		delete(x.mu.values, fieldValue{in.field, in.value})
	case in.namespace != "":
		delete(x.mu.namespaces, in.namespace)
	}
}

func (x *interests) setLocked(in interest) *cursorSet {
	switch {
	case in.key != "":
		return setOf(x.mu.keys, in.key)
	case in.value != "":
		return setOf(x.mu.values, fieldValue{in.field, in.value})
	case in.namespace != "":
		return setOf(x.mu.namespaces, in.namespace)
	}
	return &x.mu.all
}

func setOf[K comparable](m map[K]*cursorSet, k K) *cursorSet {
	s := m[k]
	if s == nil {
		s = &cursorSet{}
		m[k] = s
	}
	return s
}

// len is the number of open cursors.
func (x *interests) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.count
}

// mark marks every cursor that could match an event from sequence number from on, publishes, and
// appends the marked cursors to woken. The writer signals them after.
//
// Both happen under one lock: otherwise a new watch could find the view without the events and
// miss the marks for them. A cursor that still holds an earlier mark is signalled, too: it may be
// taking that mark right now, with a view in which the events are missing.
func (x *interests) mark(next *view, from uint64, publish func(), woken []*Cursor) []*Cursor {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.count > 0 && from < next.end {
		woken = x.mu.all.mark(from, next.end-1, from, woken)
		for seq := from; seq < next.end; seq++ {
			e := next.event(seq)
			o := e.Object
			woken = x.mu.namespaces[o.Namespace()].mark(seq, seq, from, woken)
			woken = x.mu.keys[o.Key()].mark(seq, seq, from, woken)
			for i := range x.mu.fields {
				value := o.Value(x.resource, i)
				woken = x.mu.values[fieldValue{i, value}].mark(seq, seq, from, woken)
				if e.Prev == nil {
					continue
				}
				if was := e.Prev.Value(x.resource, i); was != value {
					woken = x.mu.values[fieldValue{i, was}].mark(seq, seq, from, woken)
				}
			}
		}
	}
	publish()
	return woken
}

// mark marks the cursors for events between first and last. It appends those without a mark
// from published on to woken.
func (s *cursorSet) mark(first, last, published uint64, woken []*Cursor) []*Cursor {
	if s == nil {
		return woken
	}
	for _, c := range s.cursors {
		if c.latest.Swap(last) < published {
			woken = append(woken, c)
		}
		c.pending.CompareAndSwap(0, first)
	}
	return woken
}

// each visits every open cursor.
func (x *interests) each(visit func(*Cursor)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.mu.all.cursors {
		visit(c)
	}
	for _, s := range x.mu.namespaces {
		s.each(visit)
	}
	for _, s := range x.mu.keys {
		s.each(visit)
	}
	for _, s := range x.mu.values {
		s.each(visit)
	}
}

func (s *cursorSet) each(visit func(*Cursor)) {
	for _, c := range s.cursors {
		visit(c)
	}
}
