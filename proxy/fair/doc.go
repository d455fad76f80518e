// Package fair shares limited resources among users: requests to upstream, processor time, and
// memory for answers that are made for one request.
//
// They are shared through a [Queue]. Users take turns, weighted by cost. A user's own claims are
// served in order. The bytes of waiting claims are bounded. The user with the most waiting bytes is
// refused first.
//
//	Queue      requests to upstream, slots for expensive reads, bytes of the workspace
//	Meter      the cost of a read so far; the read takes a slot when it is no longer cheap
//	Workspace  memory for bodies that are made for one request, until they are written or dropped
//	WriteLong  a long body in pieces, with a turn for each
//	Flights    one request upstream for equal requests
//
// No read holds a slot while it waits for the workspace or for data that another read derives. Each
// piece of a long answer holds a slot for its estimated time at most, so a client that does not
// read cannot keep a slot. One processor is left to short reads. Otherwise, when all processors are
// busy, Go looks for network events only every 10 ms, and each writing goroutine runs for 10 ms
// before the next. While 300 clients did not read their lists, a get took 290 ms without the free
// processor, and 3 ms with it.
package fair
