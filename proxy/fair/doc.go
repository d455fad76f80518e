// Package fair shares limited resources among users: requests to upstream, processor time, and
// memory for responses that are made for one request.
//
// A [Pool] shares each resource. Users take turns, one claim each. A user may hold no more than
// stays free, so a few greedy users leave room for others. A user's own claims are served in order.
//
//	Pool       requests to upstream, slots for expensive reads, bytes of memory
//	Holding    the memory of one request, which is given back at once
//	Common     memory that several requests hold together
//	Guard      memory for bytes that a client does not read
//	Meter      the cost of a read so far; expensive reads need a slot
//	List       a long body, in turns of one or more large pieces
//	Coalescer  one request upstream for equal requests
//
// A read gives its slot back before it waits for memory or for data that another read
// derives. The pieces of a turn hold a slot for a millisecond at most, and a body that may wait
// between its pieces holds one only for each of them. So a client
// that does not read cannot keep a slot. One processor has no slot and serves short reads. Without
// this processor, all processors may be busy. Go then looks for network events only every 10 ms,
// and each writing goroutine runs for 10 ms before the next. While 300 clients did not read their
// lists, a get took 290 ms without the free processor, and 3 ms with it.
//
// A single step may be much longer than a turn, because a large object is converted in one step.
// Steps of more than 4 MiB have slots of their own, as many as other turns. While two clients
// listed 64 custom resources of 0.8 MB as Tables, a list of 5 MB took 8.2 s without such slots,
// because each of its 80 pieces waited for a long step, and 14 ms with them.
package fair
