package faults

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// verdict is the result of a scenario.
type verdict struct {
	watchers, events                      int
	lost, duplicated, reordered, invented int
	expired                               int64 // watches that got 410
	unduly                                int64 // of these, watches that should not have got it
	answered, failed, stale               int   // reads of the most recent state
	relists, lists                        float64
	fresh                                 float64 // seconds from the end of the disturbance
	found                                 []string
}

const shown = 5

func (v *verdict) complain(format string, args ...any) {
	if len(v.found) < shown {
		v.found = append(v.found, fmt.Sprintf(format, args...))
	}
}

// reference reads the events of a selection from the apiserver itself, after a resourceVersion at
// which there were no objects.
func reference(ctx context.Context, s *cluster.Endpoint, of resource, namespace string, selection int, first, last uint64) (*conformance.Reference, error) {
	resp, err := s.Watch(ctx, cluster.Get(of.watch(namespace, selections[selection], fmt.Sprintf("resourceVersion=%d&timeoutSeconds=300", first))))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	ref := &conformance.Reference{Since: first}
	for e, err := range conformance.Events(resp) {
		switch {
		case err != nil:
			return nil, err
		case e.Type == "ERROR":
			return nil, fmt.Errorf("the apiserver's watch: %s", e.Line)
		case e.Type != "BOOKMARK":
			ref.Events = append(ref.Events, e)
		}
		if e.RV >= last {
			return ref, nil
		}
	}
	return nil, fmt.Errorf("the apiserver's watch from %d stands at %d, due at %d", first, ref.End(), last)
}

// upTo returns the reference without the events after a resourceVersion.
func upTo(ref *conformance.Reference, rv uint64) *conformance.Reference {
	cut := &conformance.Reference{Since: ref.Since, State: ref.State}
	for _, e := range ref.Events {
		if e.RV > rv {
			break
		}
		cut.Events = append(cut.Events, e)
	}
	return cut
}

// exact compares a watcher's events with the reference: each event must have come exactly once and
// unchanged.
func (v *verdict) exact(w *watcher, ref *conformance.Reference) {
	for i := range w.histories {
		h := &w.histories[i]
		if len(h.Connections) == 0 {
			continue
		}
		whole := ref
		if i < len(w.histories)-1 {
			whole = upTo(ref, h.Connections[len(h.Connections)-1].Last())
		}
		for _, violation := range conformance.Check(whole, h) {
			v.complain("%s: %v", h.Name, violation)
			switch violation.Guarantee {
			case conformance.Unique:
				v.duplicated++
			case conformance.Ordered:
				v.reordered++
			case conformance.Exact:
				v.invented++
			default:
				v.lost++
			}
		}
	}
}

// sound checks a watcher's events after upstream has lost its history. The proxy can then only send
// the difference. Each event must fit the earlier events, and all events together must lead to the
// present state.
func (v *verdict) sound(w *watcher, want map[string]uint64) {
	state := map[string]uint64{}
	for i := range w.histories {
		clear(state)
		var last uint64
		for j, conn := range w.histories[i].Connections {
			initial := conn.State && j == 0
			for _, e := range conn.Events {
				switch _, there := state[e.Key]; {
				case e.Type == "BOOKMARK":
					if e.InitialEnd {
						initial, last = false, e.RV
					}
					continue
				case !initial && e.RV < last:
					v.reordered++
					v.complain("%v came after %d", e, last)
				case e.Type == "ADDED" && there:
					v.duplicated++
					v.complain("%v was there", e)
				case e.Type == "DELETED" && j > 0 && e.RV <= conn.From: // from a relist, sent again because the watch was cut in the middle of its deletions
				case e.Type != "ADDED" && !there:
					v.invented++
					v.complain("%v was not there", e)
				}
				if !initial {
					last = e.RV
				}
				if state[e.Key] = e.RV; e.Type == "DELETED" {
					delete(state, e.Key)
				}
			}
		}
	}
	if !maps.Equal(state, want) {
		v.lost++
		v.complain("a watcher of %q ends with %v instead of %v", selections[w.selection], state, want)
	}
}

// present returns the objects of a selection at the apiserver.
func present(t *testing.T, s *cluster.Endpoint, of resource, namespace string, selection int) map[string]uint64 {
	t.Helper()
	resp, err := s.Watch(t.Context(), cluster.Get(of.watch(namespace, selections[selection], "resourceVersion=0&timeoutSeconds=20")))
	cluster.MustT(t, err)
	defer resp.Body.Close()
	state := map[string]uint64{}
	for e, err := range conformance.Events(resp) {
		cluster.MustT(t, err)
		if e.InitialEnd {
			return state
		}
		state[e.Key] = e.RV
	}
	t.Fatal("the state has no end")
	return nil
}

// reads compares lists of the most recent state with the reference of all events.
func (v *verdict) reads(r *reader, ref *conformance.Reference) {
	v.answered += r.answered
	v.failed += r.failed
	v.stale += len(r.stale)
	for _, s := range r.stale {
		v.complain("%s", s)
	}
	if ref == nil {
		return
	}
	for _, s := range r.seen {
		want := map[string]string{}
		for _, e := range ref.State {
			_, name, _ := strings.Cut(e.Key, "/")
			want[name] = fmt.Sprint(e.RV)
		}
		for _, e := range ref.Events {
			if e.RV > s.rv {
				break
			}
			_, name, _ := strings.Cut(e.Key, "/")
			if want[name] = fmt.Sprint(e.RV); e.Type == "DELETED" {
				delete(want, name)
			}
		}
		if !maps.Equal(s.state, want) {
			v.invented++
			v.complain("a list at %d holds %v instead of %v", s.rv, s.state, want)
		}
	}
}
