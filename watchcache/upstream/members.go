package upstream

// This file establishes whose revisions are of one etcd. kube-apiserver may keep some resources in
// another (--etcd-servers-overrides), whose revisions mean something else.

const (
	// evidenceEnough is how many times a resource's revision has to lie between two of the reference,
	// at another revision each time.
	evidenceEnough = 3
	// evidenceWidth is how far apart those two may be: the closer, the less it is by chance.
	evidenceWidth = 1000
)

// membership is what is known of whether a resource is in the reference's etcd.
type membership struct {
	evidence int
	at       uint64 // the revision of the last piece of it
	apart    bool   // for good
}

func (m *membership) proved() bool { return m != nil && !m.apart && m.evidence >= evidenceEnough }

// reading is what a consistent read has returned as the revision.
type reading struct {
	of owner
	rv uint64
}

// attest takes readings that were made one after the other, the first and the last of the
// reference. In one etcd, revisions never go back. It returns who was found to be apart.
func (l *ledger) attest(readings []reading) (apart []owner) {
	first, last := readings[0], readings[len(readings)-1]
	if last.rv < first.rv || last.rv-first.rv > evidenceWidth {
		return nil // restored meanwhile, or too much happens
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.members == nil {
		l.mu.members = map[owner]*membership{}
	}
	at := first.rv
	for _, r := range readings {
		m := l.mu.members[r.of]
		if m == nil {
			m = &membership{}
			l.mu.members[r.of] = m
		}
		switch {
		case m.apart:
		case r.rv < at || r.rv > last.rv:
			m.apart = true
			apart = append(apart, r.of)
		default:
			at = r.rv
			if r.rv > m.at {
				m.evidence++
				m.at = r.rv
			}
		}
	}
	if len(apart) > 0 {
		l.forgetLocked() // they may have been members
	}
	return apart
}

// undecided tells whether more evidence is wanted of a resource.
func (l *ledger) undecided(o owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mu.members[o]
	return m == nil || !m.apart && m.evidence < evidenceEnough
}

// has tells whether a resource is in the ledger.
func (l *ledger) has(o owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.entries != nil && l.mu.members[o].proved()
}
