// Package listen serves the connections of one listener over HTTP/1.1 and HTTP/2, and hands
// requests to an [exchange.Handler]. It is the only package that knows fasthttp.
//
// Fasthttp gets a connection once the head of a request is complete (package conn). A stream takes
// its connection over from fasthttp and writes the chunks itself. Package h2 serves HTTP/2 with
// the same handler.
//
// # Cost
//
// Lists are written in pieces of 64 KiB, at the cost of encryption, system calls and one copy.
// Fasthttp itself writes pieces of 4 KiB, and each of them was a TLS record and a system call. A
// list then took twice as long as the same file from nginx.
//
// The delivery of an event to a watch is a write. The kernel takes seven tenths of the delivery's
// time, and encryption an eighth. A separate goroutine for each watch added a fifth. So over
// HTTP/1.1 a [pump] writes as much as the socket takes without blocking. If the socket does not
// take everything, the watch gets a goroutine until its client has caught up. A raw sendto, which
// Go's scheduler does not see, saved 9 % of a delivery (9.8 instead of 10.7 µs with 1,000 watches
// over TLS). But it raised the median delay of a delivery from 5.0 to 6.8 ms, so it was removed.
//
// An idle watch over HTTP/1.1 is one goroutine, which waits for its client to leave.
package listen
