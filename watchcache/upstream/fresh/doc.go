// Package fresh proves that caches are up to date, for reads of the most recent state. All readers
// of a resource who wait share one run (see [Feed.Fresh]):
//
//	probe upstream's revision R
//	  the cache is at R, or the ledger proves that nothing happened since ─► answer
//	  the stream reaches R within a few milliseconds ─────────────────────► answer
//	  small collection: list it, fast-forward the cache ──────────────────► answer
//	  else a side watch, for one to two seconds. Watches wait for it, and lists are forwarded
//
// fresh.go shares the runs among readers, run.go is one run, and maxage.go spares a read its run
// within a configured maxAge.
//
// The [Ledger] records which resource used each revision of etcd. Feeds use it as feed.Ledger. The
// [Keeper] maintains it (keeper.go): it watches the metadata of all resources (watch.go) and
// collects evidence of one etcd (evidence.go). A foreign write is one to another resource.
package fresh
