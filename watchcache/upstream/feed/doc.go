// Package feed keeps the cache of one resource up to date with a kube-apiserver. A [Feed] is the
// only writer of its cache. It runs this loop (loop.go):
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// The other files:
//
//   - catchup.go: brings a cache to upstream's revision faster than the watch stream does
//   - compare.go: compares caches with upstream
//   - settle.go: starts a feed from a saved cache
//   - since.go: starts a feed at an earlier resourceVersion, for clients of a replaced proxy
//   - signs.go: detects lost and silent streams
//
// When kube-apiserver 1.36 restarts, its watch history starts again. It then rejects a watch from
// any earlier resourceVersion as "too old", so each feed relists. Cache.Replace turns the
// differences into events, and downstream watches continue.
package feed
