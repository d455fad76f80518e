package fresh

import "github.com/watchproxy/watchproxy/watchcache/upstream/feed"

// This file determines which resources share one etcd. kube-apiserver may keep some resources in
// another etcd (--etcd-servers-overrides), whose revisions are unrelated.
//
// The reference is the resource namespaces. A resource is probed between two probes of the
// reference. If its revision lies between the reference's two revisions, that is evidence. The
// ledger requires such evidence three times, at a different revision each time. A resource is
// excluded permanently if its revision ever lies outside, or if it shares two revisions with
// another.
//
// Until then, two resources that show the same objects would prove stale caches of each other
// current. Aggregated APIs may show other resources' objects, so they are ignored. Of
// kube-apiserver's own resources, only the two names of events have the same objects. They count as
// one resource.

const (
	// EvidenceEnough is how often the ledger requires evidence of a resource.
	EvidenceEnough = 3
	// evidenceWidth limits the distance between the reference's two revisions. The smaller the
	// distance, the less likely is a coincidence.
	evidenceWidth = 1000
)

// membership is the evidence that a resource shares the reference's etcd.
type membership struct {
	evidence int
	at       uint64 // the revision of the last evidence
	apart    bool   // excluded permanently
	// collisions counts revisions that another resource has used as well. A single collision may be
	// due to an event from before a restore of etcd.
	collisions int
}

func (m *membership) collided() {
	m.collisions++
	m.apart = m.apart || m.collisions > 1
}

func (m *membership) proved() bool { return m != nil && !m.apart && m.evidence >= EvidenceEnough }

// Reading is the revision of a consistent read.
type Reading struct {
	Of feed.Owner
	RV uint64
}

// Attest records evidence from the readings of successive probes. The first and the last reading
// are of the reference. Within one etcd, revisions never go back. Attest returns the resources that
// turn out to be in another etcd.
func (l *Ledger) Attest(readings []Reading) (apart []feed.Owner) {
	first, last := readings[0], readings[len(readings)-1]
	if last.RV < first.RV || last.RV-first.RV > evidenceWidth {
		return nil // a restore or too many writes in between
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members == nil {
		l.mu.members = map[feed.Owner]*membership{}
	}
	for _, r := range readings {
		m := l.mu.members[r.Of]
		if m == nil {
			m = &membership{}
			l.mu.members[r.Of] = m
		}
		switch {
		case m.apart:
		case r.RV < first.RV || r.RV > last.RV:
			m.apart = true
			apart = append(apart, r.Of)
		case r.RV != m.at:
			m.evidence++
			m.at = r.RV
		}
	}
	if len(apart) > 0 {
		l.forgetLocked() // their revisions may already be in the ledger
	}
	return apart
}

// Undecided reports whether a resource needs more evidence.
func (l *Ledger) Undecided(o feed.Owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mu.members[o]
	return m == nil || !m.apart && m.evidence < EvidenceEnough
}

// Has reports whether the ledger covers a resource.
func (l *Ledger) Has(o feed.Owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.entries != nil && l.mu.members[o].proved()
}
