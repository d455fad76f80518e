package conformance

import (
	"bytes"
	"fmt"
)

// Guarantee is a promise of a watch.
type Guarantee string

// The guarantees of a watch.
const (
	// Ordered means that resourceVersions ascend. All events after a bookmark are above it.
	Ordered Guarantee = "ordered"
	// Unique means that no event is repeated, over all connections of a watcher.
	Unique Guarantee = "unique"
	// NoGap means that no event of the selection is missing, from the start of the first connection
	// to the end of the reference.
	NoGap Guarantee = "no gap"
	// Resumable means that a connection that starts at N continues with the next event after N.
	Resumable Guarantee = "resumable"
	// Bookmarkable means that all events up to N precede a bookmark at N.
	Bookmarkable Guarantee = "bookmarkable"
	// NotOlderThan means that the initial state of a watch is not older than requested.
	NotOlderThan Guarantee = "not older than"
	// Exact means that the initial state and each event equal upstream's, byte for byte.
	Exact Guarantee = "exact"
)

// Violation is one broken guarantee.
type Violation struct {
	Guarantee Guarantee
	Message   string
}

// String implements fmt.Stringer.
func (v Violation) String() string { return string(v.Guarantee) + ": " + v.Message }

// Check compares a watcher's history with the reference and returns the violations. The watcher
// must have continued until the reference's last event or longer.
func Check(ref *Reference, h *History) []Violation {
	c := &checker{ref: ref, seen: map[sighting]bool{}}
	for i := range h.Connections {
		conn := &h.Connections[i]
		c.number, c.resumed, c.last = i+1, i > 0, i == len(h.Connections)-1
		if c.resumed && conn.From != h.Connections[i-1].Last() {
			panic(fmt.Sprintf("BUG: the watcher resumed from %d after %d", conn.From, h.Connections[i-1].Last()))
		}
		c.connection(conn)
	}
	return c.found
}

// sighting identifies an event for the guarantee Unique.
type sighting struct {
	key string
	rv  uint64
}

type checker struct {
	ref      *Reference
	seen     map[sighting]bool
	number   int // the connection's number
	resumed  bool
	last     bool
	position uint64 // the resourceVersion up to which the connection is complete
	found    []Violation
}

func (c *checker) report(g Guarantee, format string, args ...any) {
	c.found = append(c.found, Violation{g, fmt.Sprintf("connection %d: %s", c.number, fmt.Sprintf(format, args...))})
}

// connection checks one connection. If the resourceVersion of the initial state is unknown,
// connection searches for a resourceVersion that explains all events. If there is none, it reports
// the violations of the best candidate.
func (c *checker) connection(conn *Connection) {
	if !conn.State {
		c.live(conn.From, conn.Events)
		return
	}
	for i, e := range conn.Events {
		if e.InitialEnd {
			c.state(conn.From, e.RV, conn.Events[:i])
			c.live(e.RV, conn.Events[i+1:])
			return
		}
	}
	c.guess(conn)
}

// guess tries every possible resourceVersion of a connection's initial state.
func (c *checker) guess(conn *Connection) {
	var best *checker
	for rv, state := range c.ref.states(conn.From) {
		if !begins(conn.Events, state) {
			continue
		}
		try, n := *c, len(state)
		try.found, try.seen = nil, map[sighting]bool{}
		try.state(conn.From, rv, conn.Events[:n])
		try.live(rv, conn.Events[n:])
		if best == nil || len(try.found) < len(best.found) {
			best = &try
		}
		if len(best.found) == 0 {
			break
		}
	}
	if best == nil {
		c.report(Exact, "upstream never had the state that the watch began with")
		return
	}
	best.found = append(c.found, best.found...)
	*c = *best
}

// begins reports whether events start with the objects of a state, in any order.
func begins(events []Event, state map[string]Event) bool {
	if len(events) < len(state) {
		return false
	}
	for _, e := range events[:len(state)] {
		if !bytes.Equal(e.Line, state[e.Key].Line) {
			return false
		}
	}
	return true
}

// state checks the initial state of a watch from a resourceVersion. The state was taken at rv.
func (c *checker) state(from, rv uint64, got []Event) {
	if rv < from {
		c.report(NotOlderThan, "began with the state at %d instead of %d or later", rv, from)
	}
	want := c.ref.stateAt(rv)
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			c.report(Exact, "state at %d lacks %v", rv, want[i])
		case i >= len(want):
			c.report(Exact, "state at %d has %v too many", rv, got[i])
		case !bytes.Equal(got[i].Line, want[i].Line):
			c.report(Exact, "state at %d has\n%swhere upstream has\n%s", rv, got[i].Line, want[i].Line)
		default:
			continue
		}
		return // the shift causes all further differences
	}
}

// live checks the events of a connection after the resourceVersion from.
func (c *checker) live(from uint64, events []Event) {
	c.position = from
	delivered := map[uint64]bool{}
	for _, e := range events {
		switch e.Type {
		case "BOOKMARK":
			c.bookmark(from, e.RV, delivered)
			continue
		case "ERROR":
			c.report(NoGap, "ended with %s", e.Line)
			continue
		}
		if c.seen[sighting{e.Key, e.RV}] {
			c.report(Unique, "%v came again", e)
		} else if e.RV <= c.position {
			c.report(Ordered, "%v came after %d", e, c.position)
		}
		if e.RV <= from {
			c.report(Resumable, "%v came on a watch from %d", e, from)
		}
		c.seen[sighting{e.Key, e.RV}] = true
		delivered[e.RV] = true
		c.position = max(c.position, e.RV)
		c.exact(e)
	}
	end := c.position
	if c.last {
		end = max(end, c.ref.End())
	}
	for i, e := range c.ref.between(from, end) {
		if delivered[e.RV] {
			continue
		}
		c.report(NoGap, "%v did not come", e)
		if i == 0 && c.resumed {
			c.report(Resumable, "%v did not come on a watch from %d", e, from)
		}
	}
}

func (c *checker) exact(e Event) {
	want, ok := c.ref.at(e.RV)
	switch {
	case !ok:
		c.report(Exact, "upstream has no %v", e)
	case !bytes.Equal(e.Line, want.Line):
		c.report(Exact, "came as\n%swhere upstream has\n%s", e.Line, want.Line)
	}
}

// bookmark checks a bookmark at rv. The connection started at the resourceVersion from, and
// delivered has its events so far.
func (c *checker) bookmark(from, rv uint64, delivered map[uint64]bool) {
	if rv < c.position {
		c.report(Ordered, "bookmark at %d came after %d", rv, c.position)
	}
	for _, e := range c.ref.between(from, rv) {
		if !delivered[e.RV] {
			c.report(Bookmarkable, "bookmark at %d came before %v", rv, e)
		}
	}
	c.position = max(c.position, rv)
}
