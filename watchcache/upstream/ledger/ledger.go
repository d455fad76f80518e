package ledger

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Ledger knows which resource has used each of etcd's revisions, as far as watches have shown it.
//
// Every write takes one revision, and every revision belongs to one resource: kube-apiserver writes
// one object at a time. Where etcd deletes several keys at once, as when a lease expires,
// they belong to one resource as well. So if all revisions between a cache's state and the present
// belong to other resources, that state is the present one, and upstream need not be asked.
//
// The proof needs every revision in between. Revisions that no watch shows (the
// apiservers' own leases, resources without a watch) are holes. The ledger proves no state
// before a hole until a cache gets beyond it by other means.
//
// A revision may be noted before or after its resource's own caches show it:
// a resource's own revision proves nothing for its cache. So a feed may lag any distance,
// and a resource may have two feeds.
//
// The ledger counts watch events that are newer than everything the watch has told before: no
// initial state, and no event that a relist made up. A broken stream may mean that etcd was
// restored or exchanged. So the ledger then forgets everything, the evidence too, and proves
// nothing for a cache until upstream itself has shown that cache to be current. It never proves
// anything for events: etcd deletes many of them at one revision when a lease expires, and a cache
// may show only some of these deletions.
//
// If the upstream is another watchproxy, that proxy caches everything that the ledger watches.
type Ledger struct {
	mu struct {
		sync.Mutex
		// entries has revision r at r % ledgerSize. It is nil while no reader needs proofs.
		entries []ledgerEntry
		highest uint64
		era     uint64 // counts the calls of Forget
		members map[Owner]*membership
		moved   chan struct{} // closed at the next Note; nil without a waiter
	}
}

// ledgerSize is the number of known revisions, the latest. At 8 bytes each that is half a MiB.
const ledgerSize = 1 << 16

// ledgerEntry is a revision and its owner; 0 if unknown. A revision has 48 bits:
// at a thousand writes a second they last nine thousand years.
type ledgerEntry uint64

const ownerBits = 16

// Owner identifies a resource in all its versions: they show the same objects. 0 is no resource.
type Owner uint16

func entryOf(rv uint64, o Owner) ledgerEntry { return ledgerEntry(rv<<ownerBits | uint64(o)) }

func (e ledgerEntry) split() (rv uint64, o Owner) { return uint64(e) >> ownerBits, Owner(e) }

// Begin starts the ledger: it records revisions from now on.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil {
		l.mu.entries = make([]ledgerEntry, ledgerSize)
	}
}

// Forget drops all revisions and all evidence of a shared etcd. It is called when
// the etcd may have changed, as after a restore.
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

// End is Forget, and the ledger stays empty until Begin.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	l.mu.entries = nil
}

// SharedRevision is a revision that two resources have used. They are in different etcds, or are
// the same objects under two names. Either way they prove nothing.
type SharedRevision struct {
	RV         uint64
	One, Other Owner
}

// Note records that a resource has used revisions. It records nothing for a resource that is not
// known to be in the same etcd.
func (l *Ledger) Note(o Owner, rvs ...uint64) *SharedRevision {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil || len(rvs) == 0 || !l.mu.members[o].proved() {
		return nil
	}
	for _, rv := range rvs {
		at := &l.mu.entries[rv%ledgerSize]
		switch known, was := at.split(); {
		case known > rv: // too late: the entry has a newer revision
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

// Proves tells whether resources other than o have used each revision above after, up to upTo: then
// o has not changed in between. upTo must have been read in the given era, and the era must last.
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

// Standing is the era, and the highest revision noted in it if the resource is in the same
// etcd. A consistent read that returns less shows that etcd was restored.
func (l *Ledger) Standing(o Owner) (era, highest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members[o].proved() {
		highest = l.mu.highest
	}
	return l.mu.era, highest
}

// Uses are the revisions that a watch shows as its resource's own. An upstream that is itself
// a proxy reports the deletions of a relist at the last revision that it knew before, which may
// belong to any resource. So only revisions above everything that the watch has told count.
type Uses struct {
	At  uint64 // the watch has told everything up to it
	rvs []uint64
}

// Event takes an event of the watch.
func (u *Uses) Event(rv uint64) {
	if rv > u.At {
		u.rvs = append(u.rvs, rv)
	}
	u.Reached(rv)
}

// Reached takes a bookmark.
func (u *Uses) Reached(rv uint64) { u.At = max(u.At, rv) }

// Take returns the revisions since the last call. They are valid until the next event.
func (u *Uses) Take() []uint64 {
	rvs := u.rvs
	u.rvs = u.rvs[:0]
	return rvs
}

// Owners numbers resources.
type Owners struct {
	mu struct {
		sync.Mutex
		numbers map[schema.GroupResource]Owner
	}
}

// sameObjects maps a resource to another one with the same objects.
var sameObjects = map[schema.GroupResource]schema.GroupResource{
	{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"},
}

// Of is the number of a resource, 0 if there are too many.
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

// Names are the resources with these numbers.
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
