// Package feed keeps the cache of one resource in step with a kube-apiserver. A [Feed] is the only
// writer of its cache. It runs one straight loop (loop.go):
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// Beside the loop:
//
//   - catchup.go: what brings a cache to upstream's revision sooner than the stream
//   - compare.go: caches are compared with upstream
//   - settle.go, since.go: feeds that begin with a saved cache, or in the past for clients of a
//     replaced proxy
//   - signs.go: lost and silent streams
//
// After its own restart, kube-apiserver 1.36 answers a watch from any earlier resourceVersion with
// "too old", because its history starts again: an upstream restart always leads to a relist here.
// Cache.Replace turns the difference into events, and downstream watches go on.
package feed
