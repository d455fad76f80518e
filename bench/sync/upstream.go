package main

import (
	"context"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// upstream is what the apiserver was asked because of the proxy.
type upstream struct {
	Discoveries int `json:"discoveries"`
	Probes      int `json:"probes"`
	Lists       int `json:"lists"`
	SideWatches int `json:"sideWatches"`
	Watches     int `json:"watches"` // a feed's own: one a sync
	Forwards    int `json:"forwards"`
}

// counters are the proxy's at some moment.
type counters struct {
	upstream
	watches int // answered from the cache
	refused int // told to come back later
}

func readCounters(ctx context.Context, p *cluster.Proxy) (counters, error) {
	m, err := p.Metrics(ctx)
	feeds := func(verb string) int { return int(m.Sum("watchproxy_feed_requests_total", `verb="`+verb+`"`)) }
	return counters{
		upstream: upstream{
			Discoveries: feeds("discover"),
			Probes:      feeds("probe"),
			Lists:       feeds("list"),
			SideWatches: feeds("side-watch"),
			Watches:     feeds("watch"),
			Forwards:    int(m.Sum("watchproxy_requests_total", `source="upstream"`)),
		},
		watches: int(m.Sum("watchproxy_requests_total", `verb="watch"`, `source="cache"`)),
		refused: int(m.Sum("watchproxy_requests_total", `source="proxy"`, `code="429"`)),
	}, err
}

func (c counters) since(before counters) counters {
	return counters{
		upstream: upstream{
			Discoveries: c.Discoveries - before.Discoveries,
			Probes:      c.Probes - before.Probes,
			Lists:       c.Lists - before.Lists,
			SideWatches: c.SideWatches - before.SideWatches,
			Watches:     c.Watches - before.Watches,
			Forwards:    c.Forwards - before.Forwards,
		},
		watches: c.watches - before.watches,
		refused: c.refused - before.refused,
	}
}
