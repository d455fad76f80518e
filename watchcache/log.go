package watchcache

import (
	"slices"
	"sort"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// EventType is the change of an object, regardless of selectors.
type EventType uint8

// The types of an [Event] and of a [Delta].
const (
	Added EventType = iota + 1
	Modified
	Deleted
	// left marks an object that may have left a selection inside a relist's gap. It is never sent.
	left
)

// String returns the type as it appears in watch events.
func (t EventType) String() string {
	switch t {
	case Added:
		return "ADDED"
	case Modified:
		return "MODIFIED"
	case Deleted:
		return "DELETED"
	}
	panic("BUG: no such event type")
}

// Event is one entry of the log.
type Event struct {
	Type EventType
	// jumped means that a relist found the change (see Writer.Replace). A removal's RV is then the
	// gap's first resourceVersion. Clients see the removal at the resourceVersion before the gap.
	jumped bool
	// RV is the change's position in the log. A watch that starts at RV does not get this change.
	RV uint64
	// Object is the new version, or the last content of a deleted object with the RV for clients.
	Object *object.Object
	// Prev is the replaced or deleted version, or nil.
	Prev *object.Object

	after tree.Tree // the state that includes the event
	at    int64
}

// segmentLen and segmentCost are the limits of a segment. The log drops only whole segments, so it
// may exceed its own limits by up to one segment.
const (
	segmentLen  = 128
	segmentCost = 1 << 20 // bytes
	// pathCost is the cost of an event's log entry and of the copied path of the tree.
	pathCost = 1536
)

// segment is a part of the log. The writer fills slots beyond the published end. Then it publishes
// a view that includes these slots. A visible slot never changes, so readers need no lock.
type segment struct {
	base   uint64 // sequence number of events[0]
	cost   int64
	events [segmentLen]Event
}

// gap is an interval of resourceVersions that a relist skipped, exclusive at both ends. The log's
// states in a gap may never have existed upstream (see Writer.Replace).
type gap struct{ after, before uint64 }

// view is a published state: the tree and the log that led to it. A view never changes. Sequence
// numbers count the events of a cache from 1 and are not resourceVersions.
//
// Invariants:
//
//	L1 the log contains the events with sequence numbers [first, end)
//	L2 their RVs are ≥ since and ≤ rv and do not descend
//	L3 base is the state at since; tree is the last event's field after, or base without events
//	L4 if since ≤ N and N lies in no gap, the log contains all events after N
//	L5 the events of a gap have RVs in (after, before] and one commit: all removals, then the sets
//	L6 the events of a revision have one commit. So a snapshot's place in the log is its rv: no
//	   event at or below the rv of a published view is appended later
type view struct {
	epoch    uint64
	rv       uint64
	tree     tree.Tree
	since    uint64
	base     tree.Tree
	first    uint64
	end      uint64
	cost     int64
	segments []*segment
	gaps     []gap
	ahead    Snapshot // a state from FastForward; ignored unless newer than rv
	// aheadSince is the resourceVersion from which on upstream has had the state ahead.
	aheadSince uint64
	passed     []passed // states that were ahead, oldest first
	carried    uint64   // the last rv ahead of the log up to which it has had all events
	// abandoned is the newest resourceVersion of all earlier epochs. A client that resumes at
	// abandoned or below may have seen a lost history.
	abandoned uint64
}

// event returns the event with sequence number seq, first ≤ seq < end.
func (v *view) event(seq uint64) *Event {
	i := sort.Search(len(v.segments), func(i int) bool { return v.segments[i].base > seq }) - 1
	s := v.segments[i]
	return &s.events[seq-s.base]
}

// after returns the sequence number of the first event whose RV is above rv.
func (v *view) after(rv uint64) uint64 {
	above := func(i int) bool { return v.event(v.first+uint64(i)).RV > rv }
	return v.first + uint64(sort.Search(int(v.end-v.first), above))
}

func (v *view) inGap(rv uint64) bool {
	return slices.ContainsFunc(v.gaps, func(g gap) bool { return g.after < rv && rv < g.before })
}

// crossing returns the gap of an event that a relist found. The log keeps both or none.
func (v *view) crossing(e *Event) gap {
	in := func(g gap) bool { return g.after < e.RV && e.RV <= g.before }
	return v.gaps[slices.IndexFunc(v.gaps, in)]
}

func (v *view) jumpedSince(rv uint64) bool {
	return len(v.gaps) > 0 && v.gaps[len(v.gaps)-1].before > rv
}

// treeAt returns the state at rv, since ≤ rv ≤ v.rv.
func (v *view) treeAt(rv uint64) tree.Tree {
	if seq := v.after(rv); seq > v.first {
		return v.event(seq - 1).after
	}
	return v.base
}

// append adds an event to a view that is not published yet.
func (v *view) append(e Event) {
	cost := e.cost()
	var s *segment
	if last := len(v.segments) - 1; last >= 0 {
		s = v.segments[last]
	}
	if s == nil || v.end-s.base == segmentLen || s.cost+cost > segmentCost {
		s = &segment{base: v.end}
		v.segments = append(slices.Clip(v.segments), s)
	}
	s.events[v.end-s.base] = e
	s.cost += cost
	v.cost += cost
	v.end++
	v.rv, v.tree = e.RV, e.after
}

// cost returns the memory that only the log keeps alive for this event: the replaced version, or
// the last content of a deleted object.
func (e *Event) cost() int64 {
	cost := int64(pathCost)
	if e.Prev != nil && e.Type != left { // the cost of the object's set includes these bytes
		cost += int64(len(e.Prev.Item()))
	}
	if e.Type >= Deleted {
		cost += int64(len(e.Object.Item()))
	}
	return cost
}

// trim drops the oldest segments, except the newest one, until the log is within its limits. The
// view must not be published yet.
func (v *view) trim(limits Limits, now time.Time) {
	oldest := Moment(now.Add(-limits.Age))
	drop := 0
	for ; drop < len(v.segments)-1; drop++ {
		last := v.event(v.segments[drop+1].base - 1)
		if last.at >= oldest && v.end-v.first <= uint64(limits.Events) && v.cost <= limits.Bytes {
			break
		}
		v.first = v.segments[drop+1].base
		v.since, v.base = last.RV, last.after
		v.cost -= v.segments[drop].cost
	}
	if drop > 0 {
		v.segments = slices.Clone(v.segments[drop:])
		over := func(g gap) bool { return g.before <= v.since }
		v.gaps = slices.DeleteFunc(slices.Clone(v.gaps), over)
	}
}

// Limits are the limits of a cache's event log. If the log exceeds a limit, it drops old events.
type Limits struct {
	Age    time.Duration // maximum age of an event
	Events int           // maximum number of events
	Bytes  int64         // maximum memory of the replaced objects
}

var began = time.Now()

// Moment returns t as the wall clock at the process's start plus the monotonic time since then, in
// Unix nanoseconds. So a correction of the clock makes no entry expire at once or never.
func Moment(t time.Time) int64 { return began.UnixNano() + int64(t.Sub(began)) }

// SinceMoment returns the time since a moment.
func SinceMoment(at int64) time.Duration {
	return time.Duration(Moment(time.Now()) - at)
}
