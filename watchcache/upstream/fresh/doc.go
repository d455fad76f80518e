// Package fresh proves that caches are up to date, for reads of the most recent state. All
// concurrent readers of a resource share one run (see [Feed.Fresh]). A run consists of these steps:
//
//	ask upstream for its revision ─► reach it (run.go) ─► answer
//
// The [Keeper] keeps the ledger, which proves that writes since then concerned other resources only
// (keeper.go, evidence.go). Such writes are called foreign here. If upstream answers a read faster
// than the cache can be proved current, the read goes to upstream (direct.go).
package fresh
