// Package watchcache holds one resource of a Kubernetes API as a versioned cache: the current state
// as a persistent tree (package tree), the recent past as an event log, and cursors by which any
// number of watches read that log at their own speed. It knows nothing of networks or HTTP.
//
// A [Cache] belongs to one group-version-resource in one wire encoding. One writer at a time feeds
// it; everything else reads. The writer builds each new state beside the old one and publishes it
// by one atomic pointer store. So readers take no lock and never see half a change.
//
//	upstream events ─► Apply ─► tree' = tree + event ─► log append ─► publish ─► wake cursors
//	                                                                     │
//	                       list, get ◄── Snapshot (a root and its RV) ◄──┤
//	                       watch     ◄── Cursor (a position in the log) ◄┘
//
// Guarantees, by the names that tests use:
//
//   - Ordered: a cursor delivers events in ascending resourceVersion order. The removals that a
//     relist found share the last resourceVersion before its gap.
//   - Unique: no event is delivered twice by one cursor.
//   - No gap: a cursor started at resourceVersion N delivers every matching change after N, or
//     fails with [ErrTooOld] or [ErrEnded].
//   - Resumable: a cursor can start at the resourceVersion N of any event or bookmark that a cursor
//     of the same epoch delivered, while the log still reaches back to N. Inside a gap (see
//     [Cache.Replace]) it fails with [ErrTooOld].
//   - Bookmarkable: a position reported by a cursor covers all events up to it.
//   - Not older than: WaitFresh(N) returns a snapshot at N or later.
//   - Exact: SnapshotAt(N) returns the state that upstream had at N, or an error.
//
// A relist after a lost watch (410) shows the present state only. [Cache.Replace] turns the
// difference into events, so watches go on. The states between these events never existed upstream.
//
// Upstream may be restored to an earlier state. The cache then begins a new epoch: it ends its
// watches, and refuses a watch from a resourceVersion that only the lost history had. Once the new
// history has passed that resourceVersion, the cache cannot tell the two histories apart.
//
// A consistent read needs a state, not the changes that led to it. While the watch lags, the writer
// asks upstream for a state and publishes it beside the log ([Cache.FastForward]). Readers have
// that state at once; cursors still get every change in order.
package watchcache
