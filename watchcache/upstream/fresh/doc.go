// Package fresh shows that caches are up to date, for reads of the most recent state. All
// concurrent readers of a resource share one run of this (see [Feed.Fresh]):
//
//	ask upstream for its revision ─► reach it (run.go) ─► answer
//
// The [Keeper] keeps the ledger, which proves that foreign writes did not touch a resource
// (keeper.go, evidence.go). Reads that upstream answers sooner than the cache are left to it
// (direct.go).
package fresh
