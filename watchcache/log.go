package watchcache

import (
	"slices"
	"sort"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// EventType says what happened to an object, regardless of selectors.
type EventType uint8

// The types of an [Event] and of a [Delta].
const (
	Added EventType = iota + 1
	Modified
	Deleted
	// left is used only inside the log and is never sent. It says that the object may have stopped
	// matching a selector inside a relist's gap.
	left
)

// String is the type as watch events spell it.
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
	// jumped says that a relist found the change (see Cache.Replace). A removal's RV is the gap's
	// first resourceVersion; clients see the removal at the resourceVersion before.
	jumped bool
	// RV is the change's position in the log. A watch that starts at RV does not get this change
	// again.
	RV uint64
	// Object is the new version. For a deletion it is the last content, with the RV that clients
	// see.
	Object *object.Object
	// Prev is the version that was replaced or deleted, nil if there was none.
	Prev *object.Object

	after tree.Tree // the state that includes the event
	at    int64
}

// segmentLen and segmentCost bound a segment. The log drops whole segments only, so it may exceed
// its limits by up to one segment.
const (
	segmentLen  = 128
	segmentCost = 1 << 20 // bytes
	// pathCost is an event's cost in addition to the object's bytes: the entry itself and the
	// copied path of the tree.
	pathCost = 1536
)

// segment is a part of the log. The writer fills slots beyond the published end and then publishes
// a view that includes them. A slot never changes once it is visible, so readers need no lock.
type segment struct {
	base   uint64 // sequence number of events[0]
	cost   int64
	events [segmentLen]Event
}

// gap is an interval of resourceVersions, exclusive at both ends, that a relist jumped over. The
// log holds changes in it, but upstream never had the states between them (see Cache.Replace).
type gap struct{ after, before uint64 }

// view is one published state: the tree, and the log that led to it. A view never changes. The
// writer replaces it.
//
// Sequence numbers count the events of a cache from 1 and are not resourceVersions.
//
// Invariants:
//
//	L1 the log holds the events with sequence numbers [first, end)
//	L2 their RVs are ≥ since and ≤ rv and do not descend
//	L3 base is the state at since; tree is the last event's field after, or base without events
//	L4 if since ≤ N and N lies in no gap, the log holds all events after N
//	L5 the events of a gap have RVs in (after, before] and one commit: all removals, then the sets
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
	ahead    Snapshot // see FastForward; ignored unless newer than rv
	// abandoned is the newest resourceVersion of all earlier epochs. A client that resumes at or
	// below it may have seen a lost history.
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
	n := sort.Search(int(v.end-v.first), func(i int) bool { return v.event(v.first+uint64(i)).RV > rv })
	return v.first + uint64(n)
}

// inGap tells whether rv lies in a gap.
func (v *view) inGap(rv uint64) bool {
	return slices.ContainsFunc(v.gaps, func(g gap) bool { return g.after < rv && rv < g.before })
}

// crossing returns the gap that contains the event at rv, if there is one.
func (v *view) crossing(rv uint64) (gap, bool) {
	i := slices.IndexFunc(v.gaps, func(g gap) bool { return g.after < rv && rv <= g.before })
	if i < 0 {
		return gap{}, false
	}
	return v.gaps[i], true
}

// jumpedSince tells whether a gap ends after rv.
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
	last := len(v.segments) - 1
	if last < 0 || v.end-v.segments[last].base == segmentLen || v.segments[last].cost+cost > segmentCost {
		v.segments = append(slices.Clip(v.segments), &segment{base: v.end})
		last++
	}
	s := v.segments[last]
	s.events[v.end-s.base] = e
	s.cost += cost
	v.cost += cost
	v.end++
	v.rv, v.tree = e.RV, e.after
}

// cost is the memory that only the log keeps alive for this event: the replaced version, or the
// last content of a deleted object. In a restored log, an event of type left has its own copy of
// the object.
func (e *Event) cost() int64 {
	cost := int64(pathCost)
	if e.Prev != nil && e.Type != left { // the event of the object's set counts these bytes
		cost += int64(len(e.Prev.Item()))
	}
	if e.Type >= Deleted {
		cost += int64(len(e.Object.Item()))
	}
	return cost
}

// trim drops the oldest segments until the log is within its limits. It never drops the newest
// segment. The view must not be published yet.
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
		v.gaps = slices.DeleteFunc(slices.Clone(v.gaps), func(g gap) bool { return g.before <= v.since })
	}
}

// Limits bound the event log of one cache. The log drops old events as soon as it exceeds any of
// them.
type Limits struct {
	Age    time.Duration // maximum age of an event
	Events int           // maximum number of events
	Bytes  int64         // maximum memory of the replaced objects
}
