package fresh

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// This file collects evidence that resources share one etcd.

// shown returns the resources that feeds or the ledger watch.
func (k *Keeper) shown() map[ledger.Owner]*object.Resource {
	all := map[ledger.Owner]*object.Resource{}
	for _, f := range k.feeds() {
		if f.Owner != (ledger.Owner{}) {
			all[f.Owner] = f.Cache().Resource()
		}
	}
	for o, w := range k.watches {
		all[o] = w.resource
	}
	return all
}

// choose picks the resource that askAside probes.
func (k *Keeper) choose() {
	for o, r := range k.shown() {
		if client.NoWatchCache(r.GVR) && k.Ledger.Has(o) {
			k.uncached.Store(&ledgerWatch{resource: r, owner: o})
			return
		}
	}
	k.uncached.Store(nil)
}

// link collects evidence that the watched resources share one etcd. It returns true if evidence is
// still missing. Without writes, there is no new evidence.
func (k *Keeper) link(ctx context.Context) (missing bool) {
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	defer cancel()
	all := k.shown()
	reference := ledger.OwnerOf(schema.GroupResource{Resource: "namespaces"})
	undecided := slices.DeleteFunc(slices.SortedFunc(maps.Keys(all), ledger.Compare), func(o ledger.Owner) bool { return !k.Ledger.Undecided(o) })
	if len(undecided) == 0 || all[reference] == nil {
		return false
	}
	var readings []ledger.Reading
	order := slices.DeleteFunc(undecided, func(o ledger.Owner) bool { return o == reference })
	busy := map[ledger.Owner]bool{}
	for _, f := range k.feeds() {
		busy[f.Owner] = busy[f.Owner] || f.fresh.busy()
	}
	others := slices.DeleteFunc(slices.Clone(order), func(o ledger.Owner) bool { return busy[o] })
	order = append(slices.DeleteFunc(order, func(o ledger.Owner) bool { return !busy[o] }), others...)
	order = order[:min(len(order), linkMost)]
	for i, o := range append(append([]ledger.Owner{reference}, order...), reference) {
		if err := k.probes.Wait(ctx); err != nil {
			return true
		}
		p, err := k.Client.Probe(ctx, ledgerVerb, all[o])
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
	for _, o := range k.Ledger.Attest(readings) {
		k.Log.Warn("resource is in another etcd; the ledger excludes it", zap.Stringer("resource", o.Value()))
	}
	return true
}
