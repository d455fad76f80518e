package fresh

import (
	"fmt"
	"maps"
	"sync"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Ledger records which resource used each revision of etcd. Watches show these revisions.
//
// Every revision belongs to one resource, because kube-apiserver writes one object at a time. If
// etcd deletes several keys at once, for example when a lease expires, these belong to one
// resource, too. So if all revisions between a cache's state and the present belong to other
// resources, the cache is current, and the proxy does not have to ask upstream.
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
// A watch event counts only if it is newer than every earlier event of that watch (see
// [feed.Highest]). Initial states do not count. A broken stream can mean that etcd was restored
// from a backup or replaced. So the ledger then forgets all revisions, and the list of caches that
// were current. It proves nothing for a cache until upstream itself has shown again that the cache
// is current. It never proves anything for the resource events: when a lease expires, etcd deletes
// many events at one revision, and a cache may have seen only some of these deletions.
//
// If upstream is another watchproxy, the ledger's watches make that proxy cache the watched
// resources, too.
type Ledger struct {
	mu struct {
		sync.Mutex
		// entries contains revision r at index r % ledgerSize; nil while no reader needs proofs.
		entries []ledgerEntry
		highest uint64
		era     uint64                     // counts the calls of Forget
		members map[feed.Owner]*membership // of the resources that upstream serves
	}
	noted watchcache.Waiters
}

// ledgerSize is the number of revisions in the ledger. At 16 bytes each, they use one MiB.
const ledgerSize = 1 << 16

type ledgerEntry struct {
	rv uint64
	by feed.Owner
}

// Begin starts the ledger.
func (l *Ledger) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.entries = make([]ledgerEntry, ledgerSize)
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
	maps.DeleteFunc(l.mu.members, func(_ feed.Owner, m *membership) bool {
		m.evidence = 0
		return m.collisions == 0 && !m.apart // upstream may not serve the resource any more
	})
}

// End stops the ledger: it does the same as Forget, and the ledger stays empty until Begin.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	l.mu.entries = nil
}

// Note records that a resource has used revisions. It ignores resources without evidence that they
// share the etcd of the reference resource (namespaces). It returns an error if another resource
// has used one of the revisions. The two are in different etcds, or they show the same objects
// under two names. In both cases, they prove nothing.
func (l *Ledger) Note(o feed.Owner, rvs ...uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil || len(rvs) == 0 || !l.mu.members[o].proved() {
		return nil
	}
	for _, rv := range rvs {
		at := &l.mu.entries[rv%ledgerSize]
		switch was := *at; {
		case was.rv > rv: // too late: the entry already contains a newer revision
		case was.rv == rv && was.by != o:
			l.mu.members[o].collided()
			l.mu.members[was.by].collided()
			l.forgetLocked()
			return fmt.Errorf("%s and %s have both used revision %d", was.by.Value(), o.Value(), rv)
		default:
			*at = ledgerEntry{rv, o}
		}
		l.mu.highest = max(l.mu.highest, rv)
	}
	l.noted.Release()
	return nil
}

// Proves reports whether every revision in (after, upTo] was used by resources other than o. Then o
// has not changed in between. upTo must have been read in the given era. If that era is over,
// Proves returns false.
func (l *Ledger) Proves(era uint64, o feed.Owner, after, upTo uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.entries == nil || l.mu.era != era || !l.mu.members[o].proved() ||
		upTo-after > ledgerSize {
		return false
	}
	for rv := after + 1; rv <= upTo; rv++ {
		if e := l.mu.entries[rv%ledgerSize]; e.rv != rv || e.by == o {
			return false
		}
	}
	return true
}

// Wait returns a channel that the next Note closes.
func (l *Ledger) Wait() <-chan struct{} { return l.noted.Wait() }

// Position returns the era and the highest revision recorded in it. highest is 0 for a resource
// without evidence that it shares the etcd of the reference resource. If a later consistent read
// returns less than highest, etcd was restored.
func (l *Ledger) Position(o feed.Owner) (era, highest uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members[o].proved() {
		highest = l.mu.highest
	}
	return l.mu.era, highest
}
