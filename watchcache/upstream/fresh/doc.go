// Package fresh proves that caches are up to date, for reads of the most recent state. All
// concurrent readers of a resource share one run (see [Feed.Fresh]). A run consists of these steps:
//
//	read upstream's revision ─► bring the cache to it (run.go) ─► answer the readers
//
// outcome.go lists the proofs that a run tries, and what each of them says.
//
// The [Keeper] maintains the ledger. The ledger proves that all later writes concerned other
// resources (keeper.go, evidence.go). Such writes are called foreign writes. A configured maxAge spares
// a read its proof (maxage.go).
package fresh
