package store

import (
	"slices"
	"sync"
)

// ResumePoints contains the resourceVersions that clients resume from, if they are older than
// upstream's present resourceVersion. Such clients come from another proxy that has ended. They all
// come within seconds. A feed that begins at the present has no history for them. They would have
// to relist or stay connected to upstream.
type ResumePoints struct {
	mu struct {
		sync.Mutex
		earliest, latest uint64 // resourceVersions that clients resume from; 0 if there are none
	}
}

// Note records a resourceVersion that a client resumes from. Calls have no effect after the feed
// has begun.
func (p *ResumePoints) Note(since uint64) {
	if since == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.latest = max(p.mu.latest, since)
	if p.mu.earliest == 0 || since < p.mu.earliest {
		p.mu.earliest = since
	}
}

// LittleMore is added to the distance between the present and the point where a client resumes. A
// feed begins that many revisions before this point.
const LittleMore = 100

// Beginnings returns the resourceVersions at which a feed may begin, the best first. at is
// upstream's present resourceVersion.
func (p *ResumePoints) Beginnings(at uint64) (all []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, since := range []uint64{p.mu.earliest, p.mu.latest} {
		if since == 0 || since > at {
			continue
		}
		for _, rv := range []uint64{since - min(at-since+LittleMore, since-1), since} {
			if !slices.Contains(all, rv) {
				all = append(all, rv)
			}
		}
	}
	return all
}
