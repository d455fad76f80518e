// Package feed keeps the cache of one resource in step with a kube-apiserver. A [Feed] is the only
// writer of its cache. It runs one loop (loop.go):
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// Around the loop:
//
//   - catchup.go brings a cache to upstream's revision faster than the stream does
//   - compare.go compares caches with upstream
//   - settle.go and since.go start a feed from a saved cache, or at an earlier resourceVersion for
//     clients of a replaced proxy
//   - signs.go detects lost and silent streams
//
// After its own restart, kube-apiserver 1.36 answers a watch from any earlier resourceVersion with
// "too old", because its history starts again. So a restart of upstream always leads to a relist
// here. Cache.Replace turns the difference into events, and downstream watches go on.
package feed
