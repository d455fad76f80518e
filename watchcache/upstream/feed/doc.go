// Package feed keeps the cache of one resource up to date with a kube-apiserver. A [Feed] is the
// only writer of its cache. It runs this loop (loop.go):
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// Around the loop, the parts of a feed:
//
//   - [Writer]: the lock of all who write the cache, and the epoch that their writes belong to
//   - [Batch]: publishes the events that arrive together, whole revisions only
//   - beginning: starts a feed at an earlier resourceVersion, for clients of a replaced proxy
//   - watchdog: detects lost and silent streams, by upstream's [Signs]
//   - [SelfCheck]: compares the cache with upstream
//   - [CatchUp]: brings the cache to upstream's revision faster than the watch stream does
//   - [Progress] and [Usage]: what reads wait for, and what they ask of the feed
//
// With each new stream, the feed asks for the apiserver's version. Another version may write other
// bytes for the same objects, so the feed compares the cache with upstream, while the stream goes
// on. If the bytes differ, the cache begins a new epoch and its watches end. If the resource is
// served in another way, with other columns for example, the feed ends and the next request starts
// a new one.
//
// When kube-apiserver 1.36 restarts, its watch history starts again. It then rejects a watch from
// any earlier resourceVersion as "too old", so each feed relists (see [watchcache.Writer.Replace]).
package feed
