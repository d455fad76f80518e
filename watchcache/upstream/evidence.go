package upstream

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// This file looks for evidence of which resources share one etcd.

// shown returns the watched resources.
func (k *keeper) shown() map[ledger.Owner]*object.Resource {
	all := map[ledger.Owner]*object.Resource{}
	for _, f := range k.feeds.list() {
		if f.owner != 0 {
			all[f.owner] = f.cache.Resource()
		}
	}
	for o, w := range k.watches {
		all[o] = w.resource
	}
	return all
}

// choose picks the resource that is asked for upstream's revision.
func (k *keeper) choose() {
	for o, r := range k.shown() {
		if client.NoWatchCache(r.GVR) && k.ledger.Has(o) {
			k.uncached.Store(&ledgerWatch{resource: r, owner: o})
			return
		}
	}
	k.uncached.Store(nil)
}

// link looks for evidence of which watched resources share one etcd. It returns whether some
// evidence is still missing. While nobody writes, there is none.
func (k *keeper) link(ctx context.Context) (missing bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all := k.shown()
	reference := k.feeds.owners.Of(schema.GroupResource{Resource: "namespaces"})
	undecided := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(o ledger.Owner) bool { return !k.ledger.Undecided(o) })
	if len(undecided) == 0 || all[reference] == nil {
		return false
	}
	var readings []ledger.Reading
	order := slices.DeleteFunc(undecided, func(o ledger.Owner) bool { return o == reference })
	order = order[:min(len(order), linkMost)]
	for i, o := range append(append([]ledger.Owner{reference}, order...), reference) {
		if err := k.feeds.probes.Wait(ctx); err != nil {
			return true
		}
		p, err := k.feeds.client.ProbeAs(ctx, ledgerVerb, all[o])
		switch {
		case err == nil:
			readings = append(readings, ledger.Reading{Of: o, RV: p.RV})
		case i == 0 || i > len(order):
			return true
		}
		if i == 0 && p.RV == k.linked {
			return true
		}
	}
	k.linked = readings[0].RV
	for _, o := range k.ledger.Attest(readings) {
		k.log.Warn("resource is in another etcd; the ledger excludes it", zap.Stringers("resource", k.feeds.owners.Names(o)))
	}
	return true
}
