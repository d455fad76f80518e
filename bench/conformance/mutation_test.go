package conformance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// place is the position of an event in a history.
type place struct{ connection, event int }

// mutation is an error that a wrong proxy could make in a watcher's events.
type mutation struct {
	name   string
	breaks Guarantee // empty: any guarantee
	// where reports whether the mutation is possible at a place.
	where func(h *History, p place) bool
	// do changes the events of one connection.
	do func(events []Event, i int) []Event
}

func isLive(h *History, p place) bool {
	c := h.Connections[p.connection]
	if c.Events[p.event].Type == "BOOKMARK" {
		return false
	}
	return !c.State || slices.ContainsFunc(c.Events[:p.event], func(e Event) bool { return e.InitialEnd })
}

func isState(h *History, p place) bool {
	c := h.Connections[p.connection]
	return c.State && p.event < len(c.Events) && slices.ContainsFunc(c.Events[p.event:], func(e Event) bool { return e.InitialEnd })
}

var mutations = []mutation{
	{"event dropped", NoGap, isLive, func(events []Event, i int) []Event { return slices.Delete(events, i, i+1) }},
	{"event duplicated", Unique, isLive, func(events []Event, i int) []Event { return slices.Insert(events, i, events[i]) }},
	{"event repeated at the end", Unique, isLive, func(events []Event, i int) []Event { return append(events, events[i]) }},
	{"events reordered", Ordered, func(h *History, p place) bool {
		next := place{p.connection, p.event + 1}
		return next.event < len(h.Connections[p.connection].Events) && isLive(h, p) && isLive(h, next)
	}, func(events []Event, i int) []Event {
		events[i], events[i+1] = events[i+1], events[i]
		return events
	}},
	{"type altered", Exact, isLive, func(events []Event, i int) []Event {
		other := map[string]string{"ADDED": "MODIFIED", "MODIFIED": "DELETED", "DELETED": "MODIFIED"}
		events[i] = events[i].as(other[events[i].Type])
		return events
	}},
	{"byte altered", Exact, isLive, func(events []Event, i int) []Event {
		events[i].Line = bytes.Replace(events[i].Line, []byte(`"uid":"`), []byte(`"uid":" `), 1)
		return events
	}},
	{"resourceVersion not stamped", NoGap, isLive, func(events []Event, i int) []Event {
		events[i].RV--
		return events
	}},
	{"state incomplete", Exact, func(h *History, p place) bool {
		return isState(h, p) && !h.Connections[p.connection].Events[p.event].InitialEnd
	}, func(events []Event, i int) []Event { return slices.Delete(events, i, i+1) }},
	{"state in another order", Exact, func(h *History, p place) bool {
		return isState(h, p) && isState(h, place{p.connection, p.event + 2})
	}, func(events []Event, i int) []Event {
		events[i], events[i+1] = events[i+1], events[i]
		return events
	}},
	{"end of the state beyond it", Bookmarkable, func(h *History, p place) bool {
		c := h.Connections[p.connection]
		return c.Events[p.event].InitialEnd && p.event+1 < len(c.Events) && c.Events[p.event+1].Type != "BOOKMARK"
	}, func(events []Event, i int) []Event {
		// The state claims to include an event that arrives only later.
		late := events[i]
		late.RV, late.InitialEnd = events[i+1].RV, false
		return slices.Insert(events, i+1, late)
	}},
	{"event dropped where nobody knows the end of the state", "", func(h *History, p place) bool {
		c := h.Connections[p.connection]
		return c.State && !slices.ContainsFunc(c.Events, func(e Event) bool { return e.InitialEnd })
	}, func(events []Event, i int) []Event { return slices.Delete(events, i, i+1) }},
	{"bookmark too early", Bookmarkable, func(h *History, p place) bool {
		c := h.Connections[p.connection]
		return isLive(h, p) && p.event+1 < len(c.Events) && c.Events[p.event+1].Type == "BOOKMARK"
	}, func(events []Event, i int) []Event {
		events[i], events[i+1] = events[i+1], events[i]
		return events
	}},
}

func (h *History) clone() *History {
	c := &History{Name: h.Name, Connections: slices.Clone(h.Connections)}
	for i := range c.Connections {
		c.Connections[i].Events = slices.Clone(c.Connections[i].Events)
	}
	return c
}

// mutateAll applies every possible mutation to a history, each at one place, and checks that the
// validator finds it.
func mutateAll(t *testing.T, ref *Reference, h *History, r *rand.Rand) {
	t.Helper()
	for _, m := range mutations {
		var places []place
		for i := range h.Connections {
			for j := range h.Connections[i].Events {
				if p := (place{i, j}); m.where(h, p) {
					places = append(places, p)
				}
			}
		}
		if len(places) == 0 {
			continue
		}
		p := pick(r, places)
		wrong := h.clone()
		events := &wrong.Connections[p.connection].Events
		*events = m.do(*events, p.event)
		resume(wrong)
		found := Check(ref, wrong)
		if !slices.ContainsFunc(found, func(v Violation) bool { return v.Guarantee == m.breaks || m.breaks == "" }) {
			t.Errorf("%s: %s at %v is not reported as %q but as %v", h.Name, m.name, p, m.breaks, found)
		}
	}
}

// resume makes each connection start where the previous one ended, like a watcher.
func resume(h *History) {
	for i := 1; i < len(h.Connections); i++ {
		h.Connections[i].From = h.Connections[i-1].Last()
	}
}

// event makes an event from a short text: "ADDED b 3", "BOOKMARK 7", "END 7".
func event(words string) Event {
	f := strings.Fields(words)
	e := Event{Type: f[0]}
	e.RV, _ = strconv.ParseUint(f[len(f)-1], 10, 64)
	switch e.Type {
	case "END":
		e.Type, e.InitialEnd = "BOOKMARK", true
	case "BOOKMARK":
	default:
		e.Key = f[1]
	}
	e.Line = fmt.Appendf(nil, "{\"type\":%q,\"object\":{%q:%d}}\n", e.Type, e.Key, e.RV)
	return e
}

func events(words string) (all []Event) {
	for one := range strings.SplitSeq(words, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, event(one))
		}
	}
	return all
}

func TestCheck(t *testing.T) {
	ref := &Reference{
		Since:  10,
		State:  events("ADDED a 4, ADDED c 7"),
		Events: events("ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18"),
	}
	type connections = []Connection
	for _, tc := range []struct {
		name string
		saw  connections
		want []Guarantee
	}{
		{"all", connections{{10, false, events("ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, nil},
		{"all from later on", connections{{12, false, events("MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, nil},
		{"bookmarks between", connections{{10, false, events("BOOKMARK 10, ADDED b 11, BOOKMARK 12, MODIFIED a 13, DELETED c 15, BOOKMARK 15, MODIFIED b 18, BOOKMARK 99")}}, nil},
		{"resumed from an event", connections{{10, false, events("ADDED b 11")}, {11, false, events("MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, nil},
		{"resumed from a bookmark", connections{{10, false, events("ADDED b 11, BOOKMARK 12")}, {12, false, events("MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, nil},
		{"resumed from nothing", connections{{10, false, nil}, {10, false, events("ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, nil},
		{"state", connections{{0, true, events("ADDED a 13, ADDED b 11, ADDED c 7, END 14, DELETED c 15, MODIFIED b 18")}}, nil},
		{"state of after what follows", connections{{11, true, events("ADDED a 13, ADDED b 11, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Ordered, Resumable}},
		{"state that never was", connections{{11, true, events("ADDED b 11, ADDED c 7, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
		{"state that explains itself", connections{{11, true, events("ADDED a 13, ADDED b 11, MODIFIED b 18")}}, nil},

		{"too old a state", connections{{13, true, events("ADDED a 4, ADDED b 11, ADDED c 7, END 12, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{NotOlderThan}},
		{"state of another time", connections{{0, true, events("ADDED a 4, ADDED b 11, ADDED c 7, END 14, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
		{"gap", connections{{10, false, events("ADDED b 11, DELETED c 15, MODIFIED b 18")}}, []Guarantee{NoGap}},
		{"gap at the end", connections{{10, false, events("ADDED b 11, MODIFIED a 13, DELETED c 15")}}, []Guarantee{NoGap}},
		{"gap before a bookmark", connections{{10, false, events("ADDED b 11, BOOKMARK 14, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Bookmarkable, NoGap}},
		{"gap at the seam", connections{{10, false, events("ADDED b 11")}, {11, false, events("DELETED c 15, MODIFIED b 18")}}, []Guarantee{NoGap, Resumable}},
		{"again at the seam", connections{{10, false, events("ADDED b 11")}, {11, false, events("ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Unique, Resumable}},
		{"twice", connections{{10, false, events("ADDED b 11, ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Unique}},
		{"disorder", connections{{10, false, events("ADDED b 11, DELETED c 15, MODIFIED a 13, MODIFIED b 18")}}, []Guarantee{Ordered}},
		{"bookmark back in time", connections{{10, false, events("ADDED b 11, MODIFIED a 13, BOOKMARK 12, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Ordered}},
		{"another type", connections{{10, false, events("ADDED b 11, ADDED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
		{"another key", connections{{10, false, events("ADDED b 11, MODIFIED d 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
		{"an event too many", connections{{10, false, events("ADDED b 11, ADDED d 12, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
		{"an event from before", connections{{12, false, events("ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Ordered, Resumable}},
		{"an error", connections{{10, false, events("ADDED b 11, ERROR x 0")}, {11, false, events("MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{NoGap}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := Check(ref, &History{Connections: tc.saw})
			var broken []Guarantee
			for _, v := range found {
				broken = append(broken, v.Guarantee)
			}
			if !slices.Equal(broken, tc.want) {
				t.Errorf("reports %v instead of %v", found, tc.want)
			}
		})
	}
}
