// Package watch writes an open watch to its client.
//
// A [Watch] pulls from a cursor into the cache's log and appends frames to a chunk writer. It knows
// no socket: over HTTP/2 its own goroutine calls Run, over HTTP/1.1 a pump calls Turn.
//
//	watchcache.Cursor ─► Turn ─► deliver ─► frames ─► exchange.ChunkWriter
//	                      └────► bookmarks, access reviews, deadline, drain
//
// Deadlines, bookmarks, reviews and the drain set a flag (maintenanceDue). A delivery looks at the
// flag and nothing more. A select over all these cases took an eighth of a delivery.
//
// An event is encoded once for all watches of the same form that one goroutine serves ([Scratch]).
// A watch whose client does not read holds one piece of 64 KiB, or a reference to one larger event,
// and polls nothing before that is written. A large event is written from the cache's own bytes.
//
// An idle watch is one goroutine with an almost empty stack: the runtime then shrinks it.
package watch
