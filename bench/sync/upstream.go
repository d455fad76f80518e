package main

import (
	"context"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// upstream counts the requests that the proxy sends to the apiserver.
type upstream struct {
	Probes      int `json:"probes"`
	Lists       int `json:"lists"`
	Metadata    int `json:"metadata"` // lists of metadata only
	SideWatches int `json:"sideWatches"`
	Watches     int `json:"watches"`  // of feeds, one per sync
	Ledger      int `json:"ledger"`   // the ledger's watches and other requests, since the proxy's start because the ledger stays
	Others      int `json:"others"`   // of feeds: discovery
	Forwards    int `json:"forwards"` // requests of clients
}

// counters are the proxy's counters at a moment.
type counters struct {
	upstream
	watches int // answered from the cache
	refused int // asked to retry later
}

func readCounters(ctx context.Context, p *cluster.Proxy) (counters, error) {
	m, err := p.Metrics(ctx)
	feeds := func(labels ...string) int { return int(m.Sum("watchproxy_feed_requests_total", labels...)) }
	u := upstream{
		Probes:      feeds(`verb="probe"`),
		Lists:       feeds(`verb="list"`),
		Metadata:    feeds(`verb="metadata"`),
		SideWatches: feeds(`verb="side-watch"`),
		Watches:     feeds(`verb="watch"`),
		Ledger:      feeds(`verb="ledger"`),
		Forwards:    int(m.Sum("watchproxy_requests_total", `source="upstream"`)),
	}
	u.Others = feeds() - u.Probes - u.Lists - u.Metadata - u.SideWatches - u.Watches - u.Ledger
	return counters{
		upstream: u,
		watches:  int(m.Sum("watchproxy_requests_total", `verb="watch"`, `source="cache"`)),
		refused:  int(m.Sum("watchproxy_requests_total", `source="proxy"`, `code="429"`)),
	}, err
}

func (c counters) since(before counters) counters {
	return counters{
		upstream: upstream{
			Probes:      c.Probes - before.Probes,
			Lists:       c.Lists - before.Lists,
			Metadata:    c.Metadata - before.Metadata,
			SideWatches: c.SideWatches - before.SideWatches,
			Watches:     c.Watches - before.Watches,
			Ledger:      c.Ledger,
			Others:      c.Others - before.Others,
			Forwards:    c.Forwards - before.Forwards,
		},
		watches: c.watches - before.watches,
		refused: c.refused - before.refused,
	}
}
