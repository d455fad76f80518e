package ledger

// This file establishes which resources share one etcd. kube-apiserver may keep some resources in
// another etcd (--etcd-servers-overrides). Its revisions mean something else.
//
// As evidence, a probe of the resource must lie between two probes of namespaces, three times, at a
// different revision each time. A probe outside of these two excludes the resource for good. So do
// two revisions that another resource has used as well. Both names of events count as one resource.
// Aggregated APIs do not count: they may show other resources' objects.

const (
	// EvidenceEnough is how many times a resource's revision must lie between two revisions of the
	// reference, at a different revision each time.
	EvidenceEnough = 3
	// evidenceWidth bounds the distance between these two revisions. The closer they are, the less
	// likely is a coincidence.
	evidenceWidth = 1000
)

// membership is the evidence that a resource is in the reference's etcd.
type membership struct {
	evidence int
	at       uint64 // the revision of the last evidence
	apart    bool   // excluded for good
	// collisions are revisions that another resource has used as well. One of them may be an event
	// from before a restore of etcd.
	collisions int
}

func (m *membership) collided() {
	m.collisions++
	m.apart = m.apart || m.collisions > 1
}

func (m *membership) proved() bool { return m != nil && !m.apart && m.evidence >= EvidenceEnough }

// Reading is the revision of a consistent read.
type Reading struct {
	Of Owner
	RV uint64
}

// Attest takes successive readings. The first and the last are of the reference. In one etcd,
// revisions never go back. It returns the resources found to be apart.
func (l *Ledger) Attest(readings []Reading) (apart []Owner) {
	first, last := readings[0], readings[len(readings)-1]
	if last.RV < first.RV || last.RV-first.RV > evidenceWidth {
		return nil // a restore in between, or too many writes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members == nil {
		l.mu.members = map[Owner]*membership{}
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
		l.forgetLocked() // they may have been members
	}
	return apart
}

// Undecided tells whether a resource needs more evidence.
func (l *Ledger) Undecided(o Owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mu.members[o]
	return m == nil || !m.apart && m.evidence < EvidenceEnough
}

// Has tells whether the ledger covers a resource.
func (l *Ledger) Has(o Owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.entries != nil && l.mu.members[o].proved()
}
