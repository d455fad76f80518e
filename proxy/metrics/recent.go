package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Forwarded counts forwarded requests of one kind in the last minutes.
type Forwarded struct {
	Verb     string `json:"verb"`
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"` // empty for other paths and for names unknown to upstream
	Reason   string `json:"reason"`   // see watchproxy_forwarded_total
	Count    int64  `json:"count"`
}

const (
	// recentMinutes is the number of minutes kept, in addition to the present minute.
	recentMinutes = 5
	// recentKinds limits the kinds of requests in a minute. Further kinds are not counted.
	recentKinds = 256
)

const secondsOfMinute = int64(time.Minute / time.Second)

// recent counts forwarded requests by the minute. It drops old minutes.
type recent struct {
	mu      sync.Mutex
	minutes [recentMinutes + 1]struct {
		at    int64 // minutes since 1970
		kinds map[Forwarded]int64
	}
}

func (r *recent) add(kind Forwarded, now time.Time) {
	at := now.Unix() / secondsOfMinute
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

func (r *recent) all(now time.Time) []Forwarded {
	oldest := now.Unix()/secondsOfMinute - recentMinutes
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
	all := make([]Forwarded, 0, len(sums))
	for kind, n := range sums {
		kind.Count = n
		all = append(all, kind)
	}
	slices.SortFunc(all, func(a, b Forwarded) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Version, b.Version), cmp.Compare(a.Verb, b.Verb),
			cmp.Compare(a.Reason, b.Reason))
	})
	return all
}
