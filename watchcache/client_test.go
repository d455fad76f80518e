package watchcache_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// selection is a client's request and the filter for it.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	filter    *object.Filter
}

func newSelection(t testing.TB, namespace, ls, fs string) *selection {
	t.Helper()
	s := &selection{namespace: namespace}
	var err error
	if s.labels, err = labels.Parse(ls); err != nil {
		t.Fatal(err)
	}
	if s.fields, err = fields.ParseSelector(fs); err != nil {
		t.Fatal(err)
	}
	s.filter = watchcache.Select(t, watchcache.Pods, namespace, s.labels, s.fields)
	return s
}

func randomSelection(t testing.TB, r *rand.Rand) *selection {
	t.Helper()
	s := newSelection(t,
		watchcache.Pick(r, "", "", "a", "a-b", "b", "none"),
		watchcache.Pick(r, "", "", "", "app=web", "app!=web", "app", "!app", "app in (web,db)", "app notin (db),tier=1", "tier>1"),
		watchcache.Pick(r, "", "", "", "metadata.name=web", "metadata.name!=web", "spec.nodeName=n1", "spec.nodeName!=n1",
			"spec.nodeName=", "status.phase=Running", "spec.nodeName=n2,status.phase!=Running",
			"metadata.namespace=a", "metadata.namespace=b,metadata.name=db"))
	return s
}

func (s *selection) String() string {
	return fmt.Sprintf("[namespace=%s labels=%s fields=%s]", s.namespace, s.labels, s.fields)
}

// matches is the reference: apimachinery's own selectors applied to the decoded object.
func (s *selection) matches(v *version) bool {
	return v != nil && v.pod.Matches(s.namespace, s.labels, s.fields)
}

// fickle reports whether an object can leave the selection and come back.
func (s *selection) fickle() bool {
	return !s.labels.Empty() || slices.ContainsFunc(s.fields.Requirements(), func(r fields.Requirement) bool {
		return r.Field != "metadata.name" && r.Field != "metadata.namespace"
	})
}

// narrow reports whether a write can match the watch's narrowest requirement. That is the object's
// name if the watch has a name, else the node, else the namespace, else another field's value.
func (s *selection) narrow(w *write) bool {
	return s.reaches(w.prev) || s.reaches(w.next)
}

func (s *selection) reaches(v *version) bool {
	if v == nil {
		return false
	}
	pin := func(field string) string {
		value, _ := s.fields.RequiresExactMatch(field)
		return value
	}
	namespace := cmp.Or(s.namespace, pin("metadata.namespace"))
	inNamespace := namespace == "" || namespace == v.pod.Namespace
	switch name, node, phase := pin("metadata.name"), pin("spec.nodeName"), pin("status.phase"); {
	case name != "" && namespace != "":
		return inNamespace && name == v.pod.Name
	case node != "":
		return node == v.pod.Node
	case phase != "" && namespace == "":
		return phase == v.pod.Phase
	}
	return inNamespace
}

// delta implements the rules for a write and a selector in apiserver's watch cache.
func (s *selection) delta(w *write) (watchcache.Delta, bool) {
	was, is := s.matches(w.prev), s.matches(w.next)
	switch {
	case was && is:
		return watchcache.Delta{Type: watchcache.Modified, RV: w.rv, Object: w.next.object}, true
	case is:
		return watchcache.Delta{Type: watchcache.Added, RV: w.rv, Object: w.next.object}, true
	case was && w.next == nil:
		return watchcache.Delta{Type: watchcache.Deleted, RV: w.rv, Object: w.gone.object}, true
	case was:
		return watchcache.Delta{Type: watchcache.Deleted, RV: w.rv, Object: w.prev.object}, true
	}
	return watchcache.Delta{}, false
}

// client is a watch that validates every guarantee.
type client struct {
	t         testing.TB
	m         *model
	selection *selection
	cursor    *watchcache.Cursor
	epoch     int
	start     uint64
	ahead     bool                      // the start was newer than the cache
	state     map[string]*object.Object // the result of the deltas so far
	recent    []watchcache.Delta        // deltas delivered after covered
	covered   uint64                    // the last position
	last      watchcache.Delta
	standing  bool // the last poll reached the end of the log
}

func (c *client) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("client %v from %d at %d: %s", c.selection, c.start, c.covered, fmt.Sprintf(format, args...))
}

// open starts the client at rv. The client's state is the given state or, if that is nil,
// upstream's state at rv. If the cache refuses, open checks the reason and returns false.
func (c *client) open(rv uint64, state map[string]*object.Object) bool {
	c.t.Helper()
	stats := c.m.cache.Stats()
	refuse := rv < stats.Since || c.m.inGap(rv) || rv > stats.Newest && rv <= c.m.abandoned
	cursor, err := c.m.cache.Watch(c.selection.filter, rv)
	if err != nil {
		if !refuse || !errors.Is(err, watchcache.ErrTooOld) {
			c.fatalf("Resumable: watch from %d (log since %d, at %d, gaps %v): %v", rv, stats.Since, stats.ResourceVersion, c.m.gaps, err)
		}
		return false
	}
	if refuse {
		c.fatalf("watch from %d (log since %d, gaps %v) was not refused", rv, stats.Since, c.m.gaps)
	}
	if state == nil {
		state = map[string]*object.Object{}
		for key, v := range c.m.up.at(rv) {
			if c.selection.matches(v) {
				state[key] = v.object
			}
		}
	}
	*c = client{
		t: c.t, m: c.m, selection: c.selection, cursor: cursor, epoch: c.m.epoch, start: rv,
		ahead: rv > stats.ResourceVersion, state: state,
	}
	return true
}

// relist starts the client again from a snapshot.
func (c *client) relist() {
	c.t.Helper()
	s, err := c.m.cache.Snapshot()
	if err != nil {
		c.fatalf("%v", err)
	}
	state := map[string]*object.Object{}
	for o := range s.Objects(c.selection.filter.KeyRange(watchcache.Pods)) {
		if c.selection.filter.Matches(o) {
			state[o.Key()] = o
		}
	}
	if s.ResourceVersion() > c.m.rv() {
		c.m.counts["client beyond"]++
	}
	if !c.open(s.ResourceVersion(), state) {
		c.fatalf("watch from a fresh snapshot was refused")
	}
}

func (c *client) close() {
	if c.cursor != nil {
		c.cursor.Close()
		c.cursor = nil
	}
}

// poll reads once and checks the result. Sometimes it discards the last deltas and resumes after
// the last delta that it kept.
func (c *client) poll(r *rand.Rand, limit int) (more bool) {
	c.t.Helper()
	signalled := c.cursor.Signalled()
	into := make([]watchcache.Delta, r.IntN(3), 8)
	room := math.MaxInt
	if r.IntN(2) == 0 {
		room = r.IntN(8 * watchcache.EventOverhead)
	}
	deltas, position, err := c.cursor.Poll(into, limit, room)
	if err != nil {
		c.checkEnd(err)
		c.close()
		c.relist()
		return false
	}
	deltas = deltas[len(into):]
	if len(deltas) > limit {
		c.fatalf("%d deltas, limit %d", len(deltas), limit)
	}
	for _, d := range deltas {
		if room -= len(d.Object.Item()) + watchcache.EventOverhead; room < 0 {
			c.fatalf("more than there was room for: %s", show(deltas))
		}
	}
	if c.epoch != c.m.epoch {
		c.fatalf("epoch is over")
	}
	if c.standing && !signalled && len(deltas) > 0 {
		c.fatalf("delivered %s without a signal", show(deltas))
	}
	if rv := c.m.cache.Stats().ResourceVersion; position > rv || position < c.covered {
		c.fatalf("Bookmarkable: position %d, cache at %d", position, rv)
	}
	if r.IntN(20) == 0 && len(deltas) > 0 {
		// Don't resume between the deletions of one revision, because upstream cannot do that
		// either. Don't resume between the removals of a gap, because all of them would be repeated
		// (see resumesElsewhere).
		keep := r.IntN(len(deltas)) + 1
		if rv := deltas[keep-1].RV; rv <= position && !c.removal(deltas[keep-1]) && (keep == len(deltas) || deltas[keep].RV > rv) {
			c.take(deltas[:keep])
			c.resume(rv)
			return false
		}
	}
	c.take(deltas)
	c.check(position)
	if position >= c.start && r.IntN(40) == 0 && len(c.recent) == 0 {
		c.resume(position)
		return false
	}
	c.standing = !c.cursor.More() && position >= c.start
	return c.cursor.More()
}

func (c *client) resume(rv uint64) {
	c.t.Helper()
	c.close()
	if !c.open(rv, c.state) {
		c.m.counts["client not resumed"]++
		c.relist()
		return
	}
	c.m.counts["client resumed"]++
}

// checkEnd checks that the cursor had a reason to fail.
func (c *client) checkEnd(err error) {
	c.t.Helper()
	switch {
	case errors.Is(err, watchcache.ErrEnded) && c.epoch != c.m.epoch:
	case errors.Is(err, watchcache.ErrTooOld) && c.ahead && c.m.inGap(c.start):
		c.m.counts["client in gap"]++
	case errors.Is(err, watchcache.ErrTooOld) && c.selection.fickle() && c.m.gapBetween(c.covered, c.m.rv()):
		c.m.counts["client not told"]++
	case errors.Is(err, watchcache.ErrLagged) && c.epoch == c.m.epoch:
		c.m.counts["client lagged"]++
		since := c.m.cache.Stats().Since
		lost := since > c.covered
		if c.standing {
			// The log can leave behind a cursor at its end only by writes that may match the
			// cursor's filter. After a relist, the log contains other events than the writes in the
			// gap, so any gap is a reason, too.
			lost = lost && (c.m.gapBetween(c.covered, since) ||
				slices.ContainsFunc(c.m.up.between(c.covered, since), c.selection.narrow))
		}
		if !lost {
			c.fatalf("%v, but the log holds all since %d", err, since)
		}
	default:
		c.fatalf("poll: %v", err)
	}
}

// removal reports whether the delta is a removal that a relist found. Such a delta has the last
// resourceVersion before the gap, where upstream still had the object in the selection.
func (c *client) removal(d watchcache.Delta) bool {
	if d.Type != watchcache.Deleted || !slices.ContainsFunc(c.m.gaps, func(g [2]uint64) bool { return g[0] == d.RV }) {
		return false
	}
	return !slices.ContainsFunc(c.m.up.between(d.RV-1, d.RV), func(w *write) bool {
		was, ok := c.selection.delta(w)
		return ok && was.Type == watchcache.Deleted && w.key == d.Object.Key()
	})
}

// take applies deltas to the state.
func (c *client) take(deltas []watchcache.Delta) {
	c.t.Helper()
	for _, d := range deltas {
		key, removal := d.Object.Key(), c.removal(d)
		switch {
		case d.RV < c.start || d.RV == c.start && !removal:
			c.fatalf("delivered %s, not after the start", show([]watchcache.Delta{d}))
		case d.RV < c.last.RV:
			c.fatalf("Ordered: %s after %s", show([]watchcache.Delta{d}), show([]watchcache.Delta{c.last}))
		case d.RV == c.last.RV && !removal && (d.Type != watchcache.Deleted || c.last.Type != watchcache.Deleted || key == c.last.Object.Key()):
			c.fatalf("Unique: %s after %s", show([]watchcache.Delta{d}), show([]watchcache.Delta{c.last}))
		}
		had := c.state[key]
		if (had != nil) == (d.Type == watchcache.Added) {
			c.fatalf("%s, but had it is %t", show([]watchcache.Delta{d}), had != nil)
		}
		if had != nil && had.UID() != d.Object.UID() {
			c.fatalf("%s of another object: replaced without a deletion", show([]watchcache.Delta{d}))
		}
		if c.state[key] = d.Object; d.Type == watchcache.Deleted {
			delete(c.state, key)
		}
		c.last, c.recent = d, append(c.recent, d)
		if removal || c.m.inGap(d.RV) {
			c.resumesElsewhere()
		}
	}
}

// resumesElsewhere checks that the client can resume from its last delta, which is one of a gap, at another
// replica, which may have a gap soon after it.
func (c *client) resumesElsewhere() {
	c.t.Helper()
	up, rv := c.m.up, c.last.RV
	lost := rv + c.m.r.Uint64N(min(up.rv-rv, 5)+1)
	found := lost + c.m.r.Uint64N(up.rv-lost+1)
	replica := watchcache.New(c.m.resource, watchcache.Roomy)
	replica.Writer().Reset(up.at(rv).list(), rv)
	follow := func(after, upTo uint64) {
		var changes []watchcache.Change
		for _, w := range up.between(after, upTo) {
			changes = append(changes, w.change())
		}
		if err := replica.Writer().Apply(changes, c.m.now); err != nil {
			c.fatalf("%v", err)
		}
		replica.Writer().Advance(upTo, c.m.now)
	}
	follow(rv, lost)
	if replica.Writer().Replace(up.at(found).list(), found, c.m.now) != nil {
		return // more deletions than revisions
	}
	follow(found, up.rv)
	cursor, err := replica.Watch(c.selection.filter, rv)
	if err != nil {
		c.fatalf("%v", err)
	}
	defer cursor.Close()
	deltas, _, err := cursor.Poll(nil, math.MaxInt, math.MaxInt)
	if err != nil {
		return // the client lists
	}
	c.m.counts["client elsewhere"]++
	elsewhere := *c
	elsewhere.state = maps.Clone(c.state)
	for _, d := range deltas {
		if elsewhere.state[d.Object.Key()] = d.Object; d.Type == watchcache.Deleted {
			delete(elsewhere.state, d.Object.Key())
		}
	}
	elsewhere.checkState(up.rv)
}

// check compares all deltas up to position with upstream.
func (c *client) check(position uint64) {
	c.t.Helper()
	from := max(c.covered, c.start)
	c.covered = position
	split := slices.IndexFunc(c.recent, func(d watchcache.Delta) bool {
		return d.RV > position || d.RV == position && c.removal(d)
	})
	if split < 0 {
		split = len(c.recent)
	}
	got := c.recent[:split]
	c.recent = slices.Clone(c.recent[split:])
	if position < c.start {
		return
	}
	if !c.m.gapBetween(from, position) {
		var want []watchcache.Delta
		for _, w := range c.m.up.between(from, position) {
			if d, ok := c.selection.delta(w); ok {
				want = append(want, d)
			}
		}
		if !slices.EqualFunc(got, want, sameDelta) {
			c.fatalf("No gap: in (%d, %d] delivered %s, want %s", from, position, show(got), show(want))
		}
	}
	if !c.m.inGap(position) && len(c.recent) == 0 {
		c.checkState(position)
	}
}

func sameDelta(a, b watchcache.Delta) bool {
	return a.Type == b.Type && a.RV == b.RV && bytes.Equal(a.Object.Bytes(), b.Object.Bytes())
}

func (c *client) checkState(rv uint64) {
	c.t.Helper()
	var want, got []string
	for key, v := range c.m.up.at(rv) {
		if c.selection.matches(v) {
			want = append(want, fmt.Sprintf("%s@%d", key, v.pod.RV))
		}
	}
	for key, o := range c.state {
		got = append(got, fmt.Sprintf("%s@%d", key, o.ResourceVersion()))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.fatalf("Bookmarkable: state is %s, want %s", strings.Join(got, " "), strings.Join(want, " "))
	}
}
