// Package fresh shows that caches are up to date, for reads of the most recent state. All
// concurrent readers of a resource share one run (see [Feed.Fresh]):
//
//	ask upstream for its revision ─► reach it (run.go) ─► answer
//
// The [Keeper] keeps the ledger, which proves that foreign writes did not touch a resource
// (keeper.go, evidence.go). Where upstream answers a read sooner than the cache, the read goes to
// upstream (direct.go).
package fresh
