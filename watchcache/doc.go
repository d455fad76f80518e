// Package watchcache holds one resource of a Kubernetes API as a versioned cache. The current state
// is a persistent tree (package tree), and the recent past is an event log. Any number of watches
// read the log through cursors, each at its own speed. The package knows nothing of networks.
//
// A [Cache] belongs to one group-version-resource in one wire encoding. It has one writer at a time
// and any number of readers. The writer builds each new state next to the old one and publishes the
// new state by one atomic pointer store. So readers take no lock and never see half a change.
//
//	upstream events ─► Apply ─► tree' = tree + event ─► log append ─► publish ─► wake cursors
//	                                                                     │
//	                       list, get ◄── Snapshot (a root and its RV) ◄──┤
//	                       watch     ◄── Cursor (a position in the log) ◄┘
//
// Guarantees, under the names that tests use:
//
//   - Ordered: a cursor delivers events in ascending resourceVersion order. The removals that a
//     relist found share one resourceVersion, the last one before the relist's gap.
//   - Unique: no event is delivered twice by one cursor.
//   - No gap: a cursor started at resourceVersion N delivers every matching change after N, or
//     fails with [ErrTooOld] or [ErrEnded].
//   - Resumable: a cursor can start at the resourceVersion N of any event or bookmark that a cursor
//     of the same epoch delivered, while the log still reaches back to N. If N lies inside a gap
//     (see [Cache.Replace]), it fails with [ErrTooOld].
//   - Bookmarkable: a cursor has delivered all events up to the position that it reports.
//   - Not older than: WaitFresh(N) returns a snapshot at N or later.
//   - Exact: SnapshotAt(N) returns the state that upstream had at N, or an error.
//
// A relist after a lost watch (410) shows the present state only. [Cache.Replace] turns the
// difference into events, so watches go on. The states between these events never existed upstream.
//
// Upstream may be restored to an earlier state. The cache then begins a new epoch. It ends its
// watches, and refuses watches from resourceVersions that existed only in the lost history. Once
// the new history has passed such a resourceVersion, the cache can no longer recognize it.
//
// A consistent read needs a state, not the changes that led to it. While the feed's watch lags
// behind, the writer asks upstream for a state and publishes that state ahead of the log
// ([Cache.FastForward]). Readers see it immediately; cursors still get every change in order.
package watchcache
