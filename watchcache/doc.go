// Package watchcache holds one resource of a Kubernetes API as a versioned
// cache: the current state as a persistent tree, the recent past as an event
// log, and cursors by which any number of watches read that log at their own
// speed. It knows nothing of networks or HTTP.
//
// # Shape
//
// A [Cache] belongs to one group-version-resource in one wire encoding. It is
// fed by one writer at a time, which calls Reset, Apply, Advance, Replace,
// FastForward, Confirm, Trim and End; everything else reads. The writer builds each new state beside the
// old one and publishes it by one atomic pointer store, so that readers take no
// lock and never see half a change.
//
//	upstream events ─► Apply ─► tree' = tree + event ─► log append ─► publish ─► wake cursors
//	                                                                     │
//	                       list, get ◄── Snapshot (a root and its RV) ◄──┤
//	                       watch     ◄── Cursor (a position in the log) ◄┘
//
// Objects are kept as the bytes that upstream sent (package object).
//
// # Guarantees
//
// Each has a name, which the tests use.
//
//   - Ordered: a cursor delivers events in ascending resourceVersion order. The removals that a
//     relist found share the last resourceVersion before its gap.
//   - Unique: no event is delivered twice by one cursor.
//   - No gap: a cursor started at resourceVersion N delivers every matching
//     change after N, or fails with [ErrTooOld] or [ErrEnded]; it never skips.
//   - Resumable: N may be the resourceVersion of any event or bookmark that a
//     cursor delivered in the same epoch while the log still reaches back to it,
//     unless it lies inside a gap (below); then it fails with [ErrTooOld].
//   - Bookmarkable: a position reported by a cursor covers all events up to it.
//   - Not older than: WaitFresh(N) returns a snapshot at N or later.
//   - Exact: SnapshotAt(N) returns the state that upstream had at N, or an error.
//
// # Learnt on the way
//
// A relist after a lost watch (410) shows the present state only. What became
// of an object in between, and the resourceVersion at which another one was
// deleted, is gone. [Cache.Replace] turns the difference into events, so watches go on.
// Removals come first, at the last resourceVersion before the interval that was jumped over; sets
// follow at their own. At each resourceVersion that a client is shown, it holds no object that
// upstream did not have then, so it can go on at another cache or upstream. A watch for which
// that cannot be told ends with [ErrTooOld]. A reader that keeps events for others asks for
// [Cursor.WholeHistory]. A state inside the interval is one that upstream never had. The log
// therefore keeps the interval as a gap: exact reads and new watches that
// start strictly inside it are refused, everything at its ends is sound. A watch
// that had started beyond the cache's resourceVersion, and so turns out to have
// started inside a gap, ends.
//
// Upstream may be restored to an earlier state. A cache that begins anew keeps in mind how
// far it had got: a watch from a resourceVersion that only the lost history had is
// refused. Once the new history has passed it, nobody can tell the two apart; so
// watches that are open then are told at once.
//
// A consistent read needs a state, not the changes that led to it. A state that
// upstream was asked for while the watch lags is therefore published beside the
// log ([Cache.FastForward]), not into it: readers have it at once, cursors still
// get every change in order, and nothing has to be made up. When the log has
// reached that resourceVersion, it is the newest state again.
//
// A watch that is narrowed (one namespace, one node) may see nothing for hours
// while the log moves on. Its cursor must not fall off the log for that. The
// writer marks a cursor before it publishes an event which could match it; a
// cursor without a mark knows that nothing up to the published end concerns it
// and simply stands at that end. The writer never evaluates a client's selector. See [Cursor].
package watchcache
