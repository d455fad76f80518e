package ledger

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Ledger records which resource used each revision of etcd. Watches show these revisions.
//
// Every write uses one revision, and every revision belongs to one resource, because kube-apiserver
// writes one object at a time. Sometimes etcd deletes several keys at once, for example when a
// lease expires. These keys belong to one resource, too. Consider the revisions between a cache's
// state and the present. If all of them belong to other resources, the cache is current, and the
// proxy does not have to ask upstream.
//
// The proof needs every revision in between. A revision that no watch shows is a hole. It belongs
// to the apiservers' own leases or to a resource without a watch. If a cache's state is before a
// hole, the ledger proves nothing for that cache, until an upstream request brings the cache past
// the hole.
//
// A revision matters only for the caches of other resources. So the ledger may record a revision
// before or after the cache of the revision's own resource shows it. Two feeds may record revisions
// of the same resource.
//
// A watch event counts only if it is newer than every earlier event of that watch. Initial states
// and events generated from a relist do not count. A broken stream can mean that etcd was restored
// from a backup or replaced. So after a broken stream, the ledger forgets all revisions, and the
// list of caches that were current. It then proves nothing for a cache until upstream itself has
// shown again that the cache is current. It never proves anything for the resource events: when a
// lease expires, etcd deletes many events at one revision, and a cache may have seen only some of
// these deletions.
//
// If upstream is another watchproxy, the ledger's watches make that proxy cache the watched
// resources, too.
type Ledger struct {
	mu struct {
		sync.Mutex
		// entries contains revision r at index r % ledgerSize. It is nil while no reader needs
		// proofs.
		entries []ledgerEntry
		highest uint64
		era     uint64 // counts the calls of Forget
		members map[Owner]*membership
		moved   chan struct{} // closed by the next Note; nil without callers of Wait
	}
}

// ledgerSize is the number of revisions in the ledger. At 8 bytes each, they use half a MiB.
const ledgerSize = 1 << 16

// ledgerEntry is a revision with 48 bits and its owner, or 0 if the owner is unknown. At a thousand
// writes a second, 48 bits are enough for nine thousand years.
type ledgerEntry uint64

const ownerBits = 16

// Owner identifies a resource. All versions of a resource have the same Owner, because they show
// the same objects. 0 is no resource.
type Owner uint16

func entryOf(rv uint64, o Owner) ledgerEntry { return ledgerEntry(rv<<ownerBits | uint64(o)) }

func (e ledgerEntry) split() (rv uint64, o Owner) { return uint64(e) >> ownerBits, Owner(e) }

// Begin starts the ledger.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil {
		l.mu.entries = make([]ledgerEntry, ledgerSize)
	}
}

// Forget drops all revisions and all evidence of a shared etcd. It must be called if the etcd may
// have changed, for example after a restore.
func (l *Ledger) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
}

func (l *Ledger) forgetLocked() {
	clear(l.mu.entries)
	l.mu.highest = 0
	l.mu.era++
	for _, m := range l.mu.members {
		m.evidence = 0
	}
}

// End stops the ledger: it does the same as Forget, and the ledger stays empty until Begin.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	l.mu.entries = nil
}

// SharedRevision is a revision that two resources have used. The resources are in different etcds,
// or they show the same objects under two names. In both cases, they prove nothing.
type SharedRevision struct {
	RV         uint64
	One, Other Owner
}

// Note records that a resource has used revisions. It ignores resources without evidence that they
// share the etcd of the reference resource (namespaces).
func (l *Ledger) Note(o Owner, rvs ...uint64) *SharedRevision {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil || len(rvs) == 0 || !l.mu.members[o].proved() {
		return nil
	}
	for _, rv := range rvs {
		at := &l.mu.entries[rv%ledgerSize]
		switch known, was := at.split(); {
		case known > rv: // too late: the entry already contains a newer revision
		case known == rv && was != o:
			l.mu.members[o].collided()
			l.mu.members[was].collided()
			l.forgetLocked()
			return &SharedRevision{rv, was, o}
		default:
			*at = entryOf(rv, o)
		}
		l.mu.highest = max(l.mu.highest, rv)
	}
	if l.mu.moved != nil {
		close(l.mu.moved)
		l.mu.moved = nil
	}
	return nil
}

// Proves reports whether every revision in (after, upTo] was used by resources other than o. Then o
// has not changed in between. upTo must have been read in the given era. If that era is over,
// Proves returns false.
func (l *Ledger) Proves(era uint64, o Owner, after, upTo uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil || l.mu.era != era || !l.mu.members[o].proved() || upTo-after > ledgerSize {
		return false
	}
	for rv := after + 1; rv <= upTo; rv++ {
		if known, by := l.mu.entries[rv%ledgerSize].split(); known != rv || by == 0 || by == o {
			return false
		}
	}
	return true
}

// Wait returns a channel that the next Note closes.
func (l *Ledger) Wait() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.moved == nil {
		l.mu.moved = make(chan struct{})
	}
	return l.mu.moved
}

// Position returns the era and the highest revision recorded in it. highest is 0 for a resource
// without evidence that it shares the etcd of the reference resource. If a consistent read returns
// less than highest, etcd was restored.
func (l *Ledger) Position(o Owner) (era, highest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members[o].proved() {
		highest = l.mu.highest
	}
	return l.mu.era, highest
}

// Uses collects the revisions that a watch's own resource has used. If upstream is itself a proxy,
// it may have relisted. It then gives all deletions that the relist found the same revision: the
// last revision before the relist. That revision may belong to any resource. So a revision counts
// only if it is above all revisions that the watch has shown before.
type Uses struct {
	At  uint64 // the watch has shown all events up to this revision
	rvs []uint64
}

// Event records an event of the watch.
func (u *Uses) Event(rv uint64) {
	if rv > u.At {
		u.rvs = append(u.rvs, rv)
	}
	u.Reached(rv)
}

// Reached records a bookmark.
func (u *Uses) Reached(rv uint64) { u.At = max(u.At, rv) }

// Take returns the revisions since the last call. They are valid until the next event.
func (u *Uses) Take() []uint64 {
	rvs := u.rvs
	u.rvs = u.rvs[:0]
	return rvs
}

// Owners assigns numbers to resources.
type Owners struct {
	mu struct {
		sync.Mutex
		numbers map[schema.GroupResource]Owner
	}
}

// sameObjects maps a resource to another resource that has the same objects.
var sameObjects = map[schema.GroupResource]schema.GroupResource{
	{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"},
}

// Of returns the number of a resource, or 0 if there are too many resources.
func (n *Owners) Of(r schema.GroupResource) Owner {
	if same, ok := sameObjects[r]; ok {
		r = same
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.numbers == nil {
		n.mu.numbers = map[schema.GroupResource]Owner{}
	}
	o, ok := n.mu.numbers[r]
	if !ok && len(n.mu.numbers) < 1<<ownerBits-1 {
		o = Owner(len(n.mu.numbers) + 1)
		n.mu.numbers[r] = o
	}
	return o
}

// Names returns the resources with the given numbers.
func (n *Owners) Names(numbers ...Owner) (names []schema.GroupResource) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for r, o := range n.mu.numbers {
		if slices.Contains(numbers, o) {
			names = append(names, r)
		}
	}
	return names
}
