// Package watch writes an open watch to its client.
//
// A [Watch] has a [Plan], which is data, a [Feed] of events, and an [Owner], who is told what
// happens to it. It polls a cursor into the cache's log and appends events to a chunk writer. It
// does not use a socket itself. Over HTTP/2, a pump calls Step (package h2). Over HTTP/1.1, and
// with an expensive filter, a watch has its own goroutine, which calls Run.
//
//	place ─► Step ─► encoder ─► exchange.ChunkWriter
//	          └────► schedule (bookmarks, deadline, drain), recheck (access reviews)
//
// The place is a cursor, and the grants that let it read on. Deadlines, bookmarks, reviews and the
// drain set a flag of the alarm. A delivery only checks this flag. A select over all these cases
// took an eighth of a delivery's time.
//
// [Lag] measures the time from an event's arrival until the event is written. Each end of a watch
// has a reason ([Watch.Reason]).
//
// A pump serves many watches. It encodes an event once for all watches that have the same form
// ([Scratch]). If a client does not read, its watch holds one piece of 64 KiB, or a reference to
// one larger event. The watch polls no further events until the client has read these bytes. A
// large event is written from the cache's own bytes, without a copy. If it has no such bytes,
// because the object is in another form or leaves a selection, watches share a copy ([Events]).
//
// An event of a Table belongs to one watch, which has column definitions and ages of its own. So
// these events take turns ([fair.Meter]), and need room beyond 64 KiB. Otherwise 400 such watches
// of a custom resource of 110 KB that changes once a second would delay others by 4 s.
//
// A watch of some fields gets an event only if one of them changes, apart from the resourceVersion,
// or if it is a Table. All watches of these fields find this out once, in [Events].
//
// A watch ends at an object that its form cannot show. Its client watches again, and upstream
// answers (package read).
//
// A compressed watch is one gzip member. Each event is a segment of its own (package wire), which
// [Events] keeps for all watches, and the state has segments that package derived keeps.
// Kube-apiserver 1.37 instead writes a member for each flush, and some clients stop after the first
// member.
package watch
