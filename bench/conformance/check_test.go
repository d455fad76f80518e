package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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

// altered returns events of which one has another byte.
func altered(words string, i int) []Event {
	all := events(words)
	all[i].Line[len(all[i].Line)-2] = ' ' // JSON, and the same event
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

		{"gap after a state that explains itself", connections{{10, true, events("ADDED a 4, ADDED c 7, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{NoGap}},
		{"state in another order", connections{{0, true, events("ADDED b 11, ADDED a 13, ADDED c 7, END 14, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
		{"bookmark ahead of its event", connections{{0, true, events("ADDED a 4, ADDED c 7, END 10, BOOKMARK 11, ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Bookmarkable, Ordered}},
		{"other bytes", connections{{10, false, altered("ADDED b 11, MODIFIED a 13, DELETED c 15, MODIFIED b 18", 1)}}, []Guarantee{Exact}},
		{"state with other bytes", connections{{0, true, altered("ADDED a 13, ADDED b 11, ADDED c 7, END 14, DELETED c 15, MODIFIED b 18", 2)}}, []Guarantee{Exact}},
		{"state without an object", connections{{0, true, events("ADDED a 13, ADDED c 7, END 14, DELETED c 15, MODIFIED b 18")}}, []Guarantee{Exact}},
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
