package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Forwarded says how often requests of one kind were forwarded in the last minutes, and why.
type Forwarded struct {
	Verb     string `json:"verb"`
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"` // empty for other paths, and for names that upstream does not know
	Reason   string `json:"reason"`   // see watchproxy_forwarded_total
	Count    int64  `json:"count"`
}

const (
	// recentMinutes is the number of minutes that are kept, in addition to the present one.
	recentMinutes = 5
	// recentKinds bounds the kinds of requests in a minute. Further kinds are not shown.
	recentKinds = 256
)

// recent counts forwarded requests by the minute. It forgets old minutes.
type recent struct {
	mu      sync.Mutex
	minutes [recentMinutes + 1]struct {
		at    int64 // minutes since 1970
		kinds map[Forwarded]int64
	}
}

func (r *recent) add(kind Forwarded, now time.Time) {
	at := now.Unix() / int64(time.Minute/time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &r.minutes[at%int64(len(r.minutes))]
	if m.at != at || m.kinds == nil {
		m.at, m.kinds = at, map[Forwarded]int64{}
	}
	if _, known := m.kinds[kind]; known || len(m.kinds) < recentKinds {
		m.kinds[kind]++
	}
}

// all returns the kinds of the last minutes, the most frequent first.
func (r *recent) all(now time.Time) []Forwarded {
	oldest := now.Unix()/int64(time.Minute/time.Second) - recentMinutes
	sums := map[Forwarded]int64{}
	r.mu.Lock()
	for _, m := range r.minutes {
		for kind, n := range m.kinds {
			if m.at >= oldest {
				sums[kind] += n
			}
		}
	}
	r.mu.Unlock()
	shown := make([]Forwarded, 0, len(sums))
	for kind, n := range sums {
		kind.Count = n
		shown = append(shown, kind)
	}
	slices.SortFunc(shown, func(a, b Forwarded) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Version, b.Version), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Reason, b.Reason))
	})
	return shown
}
