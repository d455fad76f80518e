// Package watchcache keeps one resource of a Kubernetes API as a versioned cache. The current state
// is a persistent tree (package tree), and the recent past is an event log. Any number of watches
// read the log through cursors, each at its own speed. The package does not access the network.
//
// A [Cache] belongs to one group-version-resource in one wire encoding. It has one writer at a time
// and any number of readers. The writer builds each new state next to the old state and publishes
// it with one atomic pointer store. So gets, lists and polls take no lock and see whole states.
//
//	upstream events ─► Apply ─► tree' = tree + event ─► log append ─► publish ─► wake cursors
//	                                                                     │
//	                       list, get ◄── Snapshot (a root and its RV) ◄──┤
//	                       watch     ◄── Cursor (a position in the log) ◄┘
//
// Guarantees, under the names that tests use:
//
//   - Ordered: a cursor delivers events in ascending order of resourceVersion. Several removals can
//     have the same one.
//   - Unique: a cursor delivers each event at most once.
//   - No gap: a cursor started at resourceVersion N delivers every matching event in the log after
//     N, or fails with [ErrTooOld], [ErrLagged] or [ErrEnded].
//   - Resumable: if a cursor has delivered an event or a bookmark at resourceVersion N, another
//     cursor of the same epoch can start at N. It fails with [ErrTooOld] if the log no longer
//     reaches back to N, or if N lies inside a gap.
//   - Bookmarkable: a cursor has delivered all events up to the position that it reports.
//   - Not older than: WaitFresh(N) returns a snapshot at N or later.
//   - Exact: SnapshotAt(N) returns upstream's state at N, or an error.
//
// A relist after a lost watch (410) shows only the present state. It leaves a gap: resourceVersions
// whose events are unknown. [Writer.Replace] turns differences into events, so watches continue.
//
// Upstream may be restored to an earlier state. The cache then begins a new epoch: it ends its
// watches, and refuses watches from resourceVersions that existed only in the lost history. Once
// the new history has passed such a resourceVersion, the cache can no longer recognize it.
//
// If the feed's watch lags behind, [Writer.FastForward] publishes a state ahead of the log, because
// a consistent read needs a state and not the changes before it. Cursors still get every change.
package watchcache
