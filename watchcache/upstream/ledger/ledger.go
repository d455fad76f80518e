package ledger

import (
	"math"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Ledger tells which resource has used each of etcd's revisions, as far as watches have shown it.
//
// Every write takes one revision, and every revision is of one resource: kube-apiserver writes a
// single object at a time, and where etcd itself deletes several keys at once, as a lease expires,
// they are of one resource as well. So if each revision between a cache's state and the present one
// is known to be another resource's, that state is the present one, and nobody has to be asked.
//
// It proves that only if it knows every revision in between. Those that no watch shows (the
// apiservers' own leases, resources that nobody watches) are holes. States before it are not proved
// by the ledger, until a cache gets beyond it by other means.
//
// A revision may be noted before its resource's own caches show it, or after:
// a revision of its own proves nothing for a cache. So it makes no difference how far behind a feed
// is, or that a resource has two.
type Ledger struct {
	mu struct {
		sync.Mutex
		// entries has revision r at r % ledgerSize. It is nil while nobody needs proofs.
		entries []ledgerEntry
		highest uint64
		era     uint64 // counts what was forgotten
		members map[Owner]*membership
		moved   chan struct{} // closed when something is noted next; nil if nobody waits
	}
}

// ledgerSize is how many revisions a ledger knows, the latest. At 8 bytes each that is half a MiB.
const ledgerSize = 1 << 16

// ledgerEntry is a revision and who has used it; 0 if nothing is known. A revision has 48 bits:
// at a thousand writes a second that is nine thousand years.
type ledgerEntry uint64

const ownerBits = 16

// Owner stands for a resource, in all its versions: they show the same objects. 0 is nobody.
type Owner uint16

func entryOf(rv uint64, o Owner) ledgerEntry { return ledgerEntry(rv<<ownerBits | uint64(o)) }

func (e ledgerEntry) split() (rv uint64, o Owner) { return uint64(e) >> ownerBits, Owner(e) }

// NoEra is one in which nothing is proved.
const NoEra = math.MaxUint64

// Begin has the ledger know what is noted from now on.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil {
		l.mu.entries = make([]ledgerEntry, ledgerSize)
	}
}

// Forget makes the ledger know nothing of any revision, nor who is in one etcd. It is called when
// that may have changed, as after a restore of etcd.
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

// End is forget until the ledger begins again.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	l.mu.entries = nil
}

// SharedRevision is a revision that two resources have used. They are not in one etcd, or they are the
// same objects by two names. Either way nothing is proved by them.
type SharedRevision struct {
	RV         uint64
	One, Other Owner
}

// Note records that a resource has used revisions. Of those that are not known to be in the same etcd
// it records nothing.
func (l *Ledger) Note(o Owner, rvs ...uint64) *SharedRevision {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil || len(rvs) == 0 || !l.mu.members[o].proved() {
		return nil
	}
	for _, rv := range rvs {
		at := &l.mu.entries[rv%ledgerSize]
		switch known, was := at.split(); {
		case known > rv: // it comes too late to be of use
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

// Proves tells whether each revision after one and up to another was used by a resource other than
// o, so that nothing of o has changed in between. The latter must have been read in an era that lasts.
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

// Wait returns a channel that is closed when something is noted next.
func (l *Ledger) Wait() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.moved == nil {
		l.mu.moved = make(chan struct{})
	}
	return l.mu.moved
}

// Standing is the era, and the highest revision that was noted in it if the resource is in the same
// etcd: a consistent read that returns less is of an etcd that was restored.
func (l *Ledger) Standing(o Owner) (era, highest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members[o].proved() {
		highest = l.mu.highest
	}
	return l.mu.era, highest
}

// Uses are the revisions that a watch shows a resource to have used. If upstream is itself a proxy that
// has read its state anew, it tells deletions at the last revision that it knew before, which may be
// anybody's. So only what is beyond all that the watch has told counts.
type Uses struct {
	At  uint64 // up to where it has told everything
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

// Take returns what has come since the last time. It is valid until the next event.
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

// sameObjects are resources that show the objects of another.
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

// Names are the resources that numbers stand for.
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
