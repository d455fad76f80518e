package watchcache_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// version is a version of an object, decoded and in the cache's form.
type version struct {
	pod    watchcache.Pod
	object *object.Object
}

func newVersion(p watchcache.Pod) *version { return &version{p, p.Object()} }

// write is a change in upstream. Only deletions due to one expired lease share a revision.
type write struct {
	rv   uint64
	key  string
	prev *version // nil if there was none
	next *version // nil if deleted
	gone *version // the last content of a deleted object, at rv
	// after is the state that includes the write.
	after state
}

func (w *write) change() watchcache.Change {
	if w.next == nil {
		return watchcache.Change{Deleted: true, Object: w.gone.object}
	}
	return watchcache.Change{Object: w.next.object}
}

// state is upstream's state at one revision, by key.
type state map[string]*version

// list returns the state in the form of a list.
func (s state) list() []*object.Object {
	var list []*object.Object
	for _, key := range slices.Sorted(maps.Keys(s)) {
		list = append(list, s[key].object)
	}
	return list
}

// upstream is a store like etcd that keeps all its states.
type upstream struct {
	r      *rand.Rand
	rv     uint64
	now    state
	writes []*write
	uids   int
}

// index returns the number of writes at or below rv.
func (u *upstream) index(rv uint64) int {
	i, _ := slices.BinarySearchFunc(u.writes, rv+1, func(w *write, rv uint64) int { return cmp.Compare(w.rv, rv) })
	return i
}

func (u *upstream) at(rv uint64) state {
	if i := u.index(rv); i > 0 {
		return u.writes[i-1].after
	}
	return nil
}

func (u *upstream) between(after, upTo uint64) []*write {
	return u.writes[u.index(after):max(u.index(after), u.index(upTo))]
}

// restore goes back to an earlier revision, like a restore of etcd from a backup.
func (u *upstream) restore(rv uint64) {
	u.rv, u.now = rv, u.at(rv)
	u.writes = u.writes[:u.index(rv)]
}

func (u *upstream) commit(key string, next *version) {
	w := &write{rv: u.rv, key: key, prev: u.now[key], next: next}
	after := maps.Clone(u.now)
	if after == nil {
		after = state{}
	}
	if next == nil {
		gone := w.prev.pod
		gone.RV = u.rv
		w.gone = newVersion(gone)
		delete(after, key)
	} else {
		after[key] = next
	}
	w.after, u.now = after, after
	u.writes = append(u.writes, w)
}

// step makes one random write.
func (u *upstream) step() {
	u.rv++
	switch key := u.someKey(); {
	case u.r.IntN(6) == 0: // a write to another resource
		u.rv += u.r.Uint64N(4)
	case u.r.IntN(60) == 0: // a lease expires; etcd deletes its keys in order
		for _, key := range slices.Sorted(maps.Keys(u.now)) {
			if u.r.IntN(2) == 0 {
				u.commit(key, nil)
			}
		}
	case key != "" && u.r.IntN(3) == 0:
		u.commit(key, nil)
		if u.r.IntN(3) == 0 { // another object with the same name follows at once
			u.rv++
			u.put(key)
		}
	default:
		u.put("")
	}
}

func (u *upstream) someKey() string {
	keys := slices.Sorted(maps.Keys(u.now))
	if len(keys) == 0 {
		return ""
	}
	return keys[u.r.IntN(len(keys))]
}

// put creates or updates an object. If key is empty, the object is random.
func (u *upstream) put(key string) {
	p := watchcache.Pod{
		Namespace: watchcache.Pick(u.r, "a", "a-b", "b"),
		Name:      watchcache.Pick(u.r, "web", "db", "x", "y", "z"),
		RV:        u.rv,
		Node:      watchcache.Pick(u.r, "", "n1", "n2"),
		Phase:     watchcache.Pick(u.r, "Running", "Pending"),
		Labels:    map[string]string{},
	}
	if app := watchcache.Pick(u.r, "", "web", "db"); app != "" {
		p.Labels["app"] = app
	}
	if tier := watchcache.Pick(u.r, "", "1", "2"); tier != "" {
		p.Labels["tier"] = tier
	}
	if u.r.IntN(100) == 0 {
		p.Pad = 200 << 10 // so that segments of the log differ in length
	}
	if key != "" {
		p.Namespace, p.Name, _ = strings.Cut(key, "/")
	}
	key = p.Namespace + "/" + p.Name
	if prev := u.now[key]; prev != nil {
		p.UID = prev.pod.UID
	} else {
		u.uids++
		p.UID = fmt.Sprint("uid-", u.uids)
	}
	u.commit(key, newVersion(p))
}
