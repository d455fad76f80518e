// Package upstream feeds watch caches from a kube-apiserver: one list+watch
// loop per resource, however many clients read.
//
// A [Feed] belongs to one resource and is the only writer of its cache. It runs one straight loop:
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// [Feeds] starts feeds on first use, hands out their caches, remembers for a
// while what cannot be cached, and stops idle feeds.
//
// The first client that asks for a resource in protobuf starts a second feed for it. Custom
// resources have no protobuf form: upstream answers 406. [ErrNoEncoding] says so and is
// remembered for a while.
//
// # What upstream sees
//
// Discovery is shared: the list of groups, and one document per group and version. One request
// at a time reads each of them, and the answer holds for two seconds. Only resources that
// discovery lists get a feed.
//
// Each feed sends one probe and one watch, and one more probe before it resumes a broken watch.
// The probe is a list that matches nothing. Its resourceVersion is a linearizable read. The form
// of its body tells built-in types (kind first, list items without kind) from custom resources
// (sorted keys, items with kind); an empty list shows that as well as a full one.
//
// A sync reads the state through the watch itself (sendInitialEvents), so it needs no list.
// Where upstream refuses that (422), the feed lists by pages.
//
// A consistent read costs a probe and whatever the cache needs to catch up with that probe. All
// concurrent readers share both (see [Feed.Fresh]). A resource has one probe in flight; the next
// follows without a pause unless many readers wait. A budget bounds the probes of all resources.
// A custom resource also costs one read of its definition; all of them share one watch of
// the definitions' metadata.
//
// # Where to read on
//
//   - fresh.go, reach.go: consistent reads from the cache
//   - direct.go: reads that upstream answers sooner than the cache
//   - keeper.go: the ledger, which proves that foreign writes did not touch a resource
//   - since.go: feeds that begin in the past, for clients of a replaced proxy
//   - store.go, persist.go: saved caches
//   - watchdog.go, selfcheck.go: silent streams, wrong caches
//   - package servers: several apiservers, and what happens while none answers
//   - package discovery: changes of a CustomResourceDefinition
//
// After its own restart, kube-apiserver 1.36 answers a watch from any earlier resourceVersion with
// "too old", because its history starts again: an upstream restart always leads to a relist here.
// Cache.Replace turns the difference into events, and downstream watches go on.
package upstream
