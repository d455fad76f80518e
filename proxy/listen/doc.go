// Package listen serves the connections of one listener over HTTP/1.1 and HTTP/2, and hands
// requests to a [Handler]. It is the only package that knows fasthttp.
//
// Fasthttp gets a connection once the head of a request is complete (package conn). A stream takes
// its connection over from fasthttp and writes the chunks itself. HTTP/2 is x/net's server, with
// the same handler.
//
// # Cost
//
// A list costs as much as sending its bytes, if they go out in large pieces. Fasthttp's own pieces
// have 4 KiB. Each was a TLS record and a system call, and a list took twice as long as the same
// file from nginx. With pieces of 64 KiB, the cost is encryption, system calls and one copy.
//
// A delivery to a watch is a write. The kernel takes seven tenths of its time, and encryption an
// eighth. A goroutine for each watch added a fifth. So over HTTP/1.1 a [pump] writes what the
// socket takes without blocking. If the socket does not take everything, the watch gets a goroutine
// until its client has caught up. A raw sendto, which Go's scheduler does not see, saved 9 % of a
// delivery (9.8 instead of 10.7 µs with 1,000 watches over TLS). But it raised the median delay of
// a delivery from 5.0 to 6.8 ms, so it was removed.
//
// An idle watch is one goroutine, which waits for its client to leave. Over HTTP/2 the library also
// holds a write buffer of 4 KiB.
package listen
