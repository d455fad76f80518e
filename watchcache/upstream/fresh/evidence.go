package fresh

import (
	"context"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// linkMost limits the resources that one round compares with the reference.
const linkMost = 16

var reference = feed.OwnerOf(schema.GroupResource{Resource: "namespaces"})

// link collects evidence that the resources that feeds or the ledger watch share one etcd. Those
// with readers come first. Without writes, there is no new evidence.
func (k *Keeper) link(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	defer cancel()
	all, busy := map[feed.Owner]*object.Resource{}, map[feed.Owner]bool{}
	for _, f := range k.feeds.Started() {
		if f.Feed.Owner != (feed.Owner{}) {
			all[f.Feed.Owner] = f.Cache().Resource()
			busy[f.Feed.Owner] = busy[f.Feed.Owner] || f.busy()
		}
	}
	for o, w := range k.watches {
		if !w.pausing.Load() {
			all[o] = w.resource
		}
	}
	var order []feed.Owner
	for o := range all {
		switch {
		case o == reference || !k.Ledger.Undecided(o):
		case busy[o]:
			order = slices.Insert(order, 0, o)
		default:
			order = append(order, o)
		}
	}
	if len(order) == 0 || all[reference] == nil {
		return
	}
	order = order[:min(len(order), linkMost)]
	var readings []Reading
	for i, o := range slices.Concat([]feed.Owner{reference}, order, []feed.Owner{reference}) {
		if err := k.probes.Wait(ctx); err != nil {
			return
		}
		p, err := k.shared.Client.Probe(ctx, ledgerVerb, all[o])
		switch {
		case err == nil:
			readings = append(readings, Reading{Of: o, RV: p.RV})
		case o == reference:
			return
		}
		if i == 0 && p.RV == k.linked {
			return
		}
	}
	k.linked = readings[0].RV
	for _, o := range k.Ledger.Attest(readings) {
		k.shared.Log.Warn("resource is in another etcd; the ledger excludes it",
			zap.Stringer("resource", o.Value()))
	}
}
