package upstream

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

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
	// collisions are revisions that another has used as well. One may be an event from before etcd was
	// restored.
	collisions int
}

func (m *membership) collided() {
	m.collisions++
	m.apart = m.apart || m.collisions > 1
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
	for _, r := range readings {
		m := l.mu.members[r.of]
		if m == nil {
			m = &membership{}
			l.mu.members[r.of] = m
		}
		switch {
		case m.apart:
		case r.rv < first.rv || r.rv > last.rv:
			m.apart = true
			apart = append(apart, r.of)
		case r.rv != m.at:
			m.evidence++
			m.at = r.rv
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

// shown are the resources of which something is watched.
func (k *keeper) shown() map[owner]*object.Resource {
	all := map[owner]*object.Resource{}
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

// choose looks for a resource to ask for upstream's revision.
func (k *keeper) choose() {
	for o, r := range k.shown() {
		if client.NoWatchCache(r.GVR) && k.ledger.has(o) {
			k.uncached.Store(&ledgerWatch{resource: r, owner: o})
			return
		}
	}
	k.uncached.Store(nil)
}

// link looks for evidence of who is in one etcd, among those that are watched. It returns whether
// some is still missing. While nobody writes there is none to be had.
func (k *keeper) link(ctx context.Context) (missing bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all := k.shown()
	reference := k.feeds.owners.of(schema.GroupResource{Resource: "namespaces"})
	undecided := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(o owner) bool { return !k.ledger.undecided(o) })
	if len(undecided) == 0 || all[reference] == nil {
		return false
	}
	var readings []reading
	order := slices.DeleteFunc(undecided, func(o owner) bool { return o == reference })
	order = order[:min(len(order), linkMost)]
	for i, o := range append(append([]owner{reference}, order...), reference) {
		if err := k.feeds.probes.Wait(ctx); err != nil {
			return true
		}
		p, err := k.feeds.client.ProbeAs(ctx, ledgerVerb, all[o])
		switch {
		case err == nil:
			readings = append(readings, reading{o, p.RV})
		case i == 0 || i > len(order):
			return true
		}
		if i == 0 && p.RV == k.linked {
			return true
		}
	}
	k.linked = readings[0].rv
	for _, o := range k.ledger.attest(readings) {
		k.log.Warn("a resource is not stored with the others: it is not in the ledger", zap.Stringers("resource", k.feeds.owners.names(o)))
	}
	return true
}
