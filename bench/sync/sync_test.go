//go:build verify

package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Informers sync through the proxy. For any number of informers, upstream gets only the requests
// that prove that the cache is up to date.
func TestSync(t *testing.T) {
	proxy, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	// The large collection has more than 500 objects, the most that the proxy lists.
	o := options{informers: 2, small: 50, large: 600, busy: 60, updates: 50, writes: 20, tierEvents: 20, herds: []int{5, 20}, watchproxy: proxy}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	r, err := measure(t.Context(), o, t.Output())
	r.print(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(r.Sync), len(o.collections()); got != want {
		t.Errorf("%d collections were measured instead of %d", got, want)
	}
	for _, row := range r.Sync {
		t.Run(row.Collection, func(t *testing.T) { row.checkT(t, &o) })
	}
	for i, tier := range r.Tiers {
		if tier.Depth != i+1 || len(tier.Delays) < o.tierEvents/2 {
			t.Errorf("%d events were timed at tier %d", len(tier.Delays), tier.Depth)
		}
	}
	if len(r.Tiers) != tierDepth {
		t.Errorf("%d tiers were timed instead of %d", len(r.Tiers), tierDepth)
	}
	if got, want := len(r.Herd), 2*len(o.herds); got != want {
		t.Errorf("%d herds were measured instead of %d", got, want)
	}
	for _, row := range r.Herd {
		t.Run(strconv.Itoa(row.Members)+" of "+row.Collection, func(t *testing.T) { row.checkT(t, &o) })
	}
}

func (s *solo) checkT(t *testing.T, o *options) {
	t.Helper()
	if len(s.Direct) != o.informers || len(s.Proxied) != o.informers {
		t.Errorf("%d and %d informers have synced instead of %d", len(s.Direct), len(s.Proxied), o.informers)
	}
	if s.Cached != o.informers {
		t.Errorf("%d watches were answered from the cache instead of %d", s.Cached, o.informers)
	}
	u := s.Upstream
	if u.Watches != 0 { // the ledger may just discover the resources (Others)
		t.Errorf("more than freshness was asked for: %+v", u)
	}
	checkFreshnessT(t, u, s.Objects, o)
	if u.Probes > o.informers && u.Ledger == 0 {
		t.Errorf("%d probes for %d informers", u.Probes, o.informers)
	}
	if (s.Updates > 0) != strings.HasSuffix(s.Collection, "busy") {
		t.Errorf("there were %v updates/s", s.Updates)
	}
}

func (h *herd) checkT(t *testing.T, o *options) {
	t.Helper()
	if h.Synced != h.Members || h.Cached != h.Members || h.Refused != 0 {
		t.Errorf("%d have synced, %d from the cache, %d were refused", h.Synced, h.Cached, h.Refused)
	}
	if h.Upstream.Watches != 1 {
		t.Errorf("there were %d syncs", h.Upstream.Watches)
	}
	if h.Decoding != (h.Members == o.herds[0]) {
		t.Errorf("decoding is %t", h.Decoding)
	}
	checkFreshnessT(t, h.Upstream, h.Objects, o)
	if most := h.Members + 1; h.Upstream.Probes > most { // the feed's own probe is the first
		t.Errorf("%d probes, more than one an informer", h.Upstream.Probes)
	}
}

// checkFreshnessT fails if consistent reads used other proofs than a collection of that size
// allows. While the proxy keeps a ledger, it also runs proofs for the caches of earlier collections
// if the ledger has gaps.
func checkFreshnessT(t *testing.T, u upstream, objects int, o *options) {
	t.Helper()
	switch {
	case u.Forwards != 0:
		t.Errorf("%d requests were forwarded", u.Forwards)
	case objects == o.large && u.Lists != 0:
		t.Errorf("%d lists of a large collection", u.Lists)
	case objects < o.large && u.SideWatches+u.Metadata != 0 && u.Ledger == 0:
		t.Errorf("%d side watches and %d lists of metadata of a small collection", u.SideWatches, u.Metadata)
	case u.Probes+u.Lists == 0:
		t.Error("nobody asked upstream where it stands")
	}
}
