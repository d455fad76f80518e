// Package upstream feeds watch caches from a kube-apiserver: one list+watch
// loop per resource, however many clients read.
//
// A [Feed] belongs to one resource and is the only writer of its cache. It runs
// one straight loop:
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// [Feeds] starts feeds on first use, hands out their caches, remembers for a
// while what cannot be cached, and stops what nobody uses.
//
// # What upstream sees
//
// Per resource: one discovery request, one probe, one watch. The probe is a
// list that matches nothing; its revision is a linearizable read, and the form
// of its body tells built-in types (kind first, list items without kind) from
// custom resources (sorted keys, items with kind), which an empty list shows as
// well as a full one.
//
// State is read through the watch itself (sendInitialEvents), so a sync is no
// list at all. Where upstream refuses that (422), it is listed by pages.
//
// # Learnt from the real apiserver
//
// After its own restart, kube-apiserver 1.36 answers a watch from any earlier
// resourceVersion with "too old", because its history begins anew: a restart
// upstream always leads to a relist here. What happened in between is turned
// into events (watchcache.Cache.Replace) and downstream watches go on.
package upstream
