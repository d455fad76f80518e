package watchcache_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// place is a server that clients list and watch: a replica, or upstream itself.
type place interface {
	// list returns a state and its resourceVersion.
	list(s *selection) (map[string]*object.Object, uint64)
	// watch follows the changes after rv. It returns nil if rv is too old.
	watch(s *selection, rv uint64) connection
}

// connection is an open watch.
type connection interface {
	// poll returns the next deltas and, at the end, a bookmark. If the client has to list, poll
	// fails.
	poll(limit int) (deltas []watchcache.Delta, bookmark uint64, err error)
	close()
}

// apiserver is upstream as a place. It keeps only the changes after one revision.
type apiserver struct {
	up        *upstream
	compacted uint64
}

func (a *apiserver) list(s *selection) (map[string]*object.Object, uint64) {
	return s.of(a.up.now), a.up.rv
}

// of selects objects from a state.
func (s *selection) of(all state) map[string]*object.Object {
	selected := map[string]*object.Object{}
	for key, v := range all {
		if s.matches(v) {
			selected[key] = v.object
		}
	}
	return selected
}

func (a *apiserver) watch(s *selection, rv uint64) connection {
	if rv < a.compacted {
		return nil
	}
	return &trueWatch{a.up, s, rv}
}

// trueWatch shows the true history.
type trueWatch struct {
	up        *upstream
	selection *selection
	at        uint64
}

func (w *trueWatch) poll(limit int) (deltas []watchcache.Delta, bookmark uint64, err error) {
	for _, write := range w.up.between(w.at, w.up.rv) {
		if len(deltas) == limit {
			return deltas, 0, nil
		}
		w.at = write.rv
		if d, ok := w.selection.delta(write); ok {
			deltas = append(deltas, d)
		}
	}
	w.at = max(w.at, w.up.rv)
	return deltas, w.at, nil
}

func (*trueWatch) close() {}

// replica is a cache that follows upstream, or another replica.
type replica struct {
	t      testing.TB
	up     *upstream
	of     *replica // nil if the replica follows upstream
	source *watchcache.Cursor
	cache  *watchcache.Cache
	lost   bool
	now    time.Time
	counts map[string]int
}

func (r *replica) rv() uint64 { return r.cache.Stats().ResourceVersion }

func (r *replica) list(s *selection) (map[string]*object.Object, uint64) {
	snapshot, err := r.cache.Snapshot()
	if err != nil {
		r.t.Fatal(err)
	}
	selected := map[string]*object.Object{}
	for o := range snapshot.Objects("", "") {
		if s.filter.Matches(o) {
			selected[o.Key()] = o
		}
	}
	return selected, snapshot.ResourceVersion()
}

func (r *replica) watch(s *selection, rv uint64) connection {
	cursor, err := r.cache.Watch(s.filter, rv)
	if err != nil {
		return nil
	}
	return &cachedWatch{cursor, rv}
}

// cachedWatch is a watch from the proxy.
type cachedWatch struct {
	cursor *watchcache.Cursor
	start  uint64
}

func (w *cachedWatch) poll(limit int) (deltas []watchcache.Delta, bookmark uint64, err error) {
	deltas, position, err := w.cursor.Poll(nil, limit)
	if position > w.start {
		bookmark = position
	}
	return deltas, bookmark, err
}

func (w *cachedWatch) close() { w.cursor.Close() }

// follow reads up to n changes from the replica's source.
func (r *replica) follow(n int) {
	r.t.Helper()
	if r.of != nil {
		r.followReplica(n)
		return
	}
	var changes []watchcache.Change
	for _, w := range r.up.between(r.rv(), r.up.rv) {
		if len(changes) == n {
			break
		}
		changes = append(changes, w.change())
	}
	r.apply(changes)
	if len(changes) < n {
		r.cache.Advance(r.up.rv, r.now)
	}
}

func (r *replica) apply(changes []watchcache.Change) {
	r.t.Helper()
	if err := r.cache.Apply(changes, r.now); err != nil {
		r.t.Fatalf("Apply: %v", err)
	}
}

// followReplica reads the other replica's watch, like a proxy behind a proxy.
func (r *replica) followReplica(n int) {
	r.t.Helper()
	if r.source == nil {
		cursor, err := r.of.cache.Watch(newSelection(r.t, "", "", "").filter, r.rv())
		if err != nil {
			r.relist(0)
			return
		}
		cursor.WholeHistory()
		r.source = cursor
	}
	deltas, position, err := r.source.Poll(nil, n)
	if err != nil {
		r.unfollow()
		r.relist(0)
		return
	}
	var changes []watchcache.Change
	for _, d := range deltas {
		changes = append(changes, watchcache.Change{Deleted: d.Type == watchcache.Deleted, Object: d.Object.At(d.RV)})
	}
	r.apply(changes)
	if len(deltas) < n {
		r.cache.Advance(position, r.now)
	}
}

func (r *replica) unfollow() {
	if r.source != nil {
		r.source.Close()
		r.source = nil
	}
}

// relist replaces the replica's state with the source's state at rv or with its present state,
// unless that state is older than the replica's.
func (r *replica) relist(rv uint64) {
	r.t.Helper()
	r.unfollow()
	objects := r.up.at(rv).list()
	if r.of != nil {
		s, err := r.of.cache.Snapshot()
		if err != nil {
			r.t.Fatal(err)
		}
		objects, rv = slices.Collect(s.Objects("", "")), s.ResourceVersion()
	}
	if rv < r.rv() {
		return
	}
	if rv > r.rv()+1 {
		r.counts["gap"]++
	}
	if err := r.cache.Replace(objects, rv, r.now); err != nil {
		r.t.Fatalf("Replace: %v", err)
	}
}

// restart begins anew at rv, or at the present state of the replica's source. All watches end.
func (r *replica) restart(rv uint64) {
	r.t.Helper()
	r.cache.End()
	r.cache = watchcache.New(*watchcache.Pods, r.cache.Limits())
	if r.of != nil {
		r.reset()
	} else {
		r.cache.Reset(r.up.at(rv).list(), rv)
	}
	r.counts["restart"]++
}

// reset begins a new epoch, like a feed whose state may be wrong.
func (r *replica) reset() {
	r.unfollow()
	if r.of != nil {
		s, err := r.of.cache.Snapshot()
		if err != nil {
			r.t.Fatal(err)
		}
		r.cache.Reset(slices.Collect(s.Objects("", "")), s.ResourceVersion())
		return
	}
	r.cache.Reset(r.up.now.list(), r.up.rv)
}

// versions are the resourceVersions of objects, by key.
func versions(objects map[string]*object.Object) map[string]uint64 {
	all := map[string]uint64{}
	for key, o := range maps.All(objects) {
		all[key] = o.ResourceVersion()
	}
	return all
}
