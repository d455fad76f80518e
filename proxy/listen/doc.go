// Package listen serves the connections of one listener over HTTP/1.1 and HTTP/2, and passes
// requests to an [exchange.Handler]. It is the only package that imports fasthttp.
//
// Package conn waits for the complete head of a request, and only then fasthttp serves the
// connection. A stream takes the connection over from fasthttp and writes the chunks itself.
// Package h2 serves HTTP/2 with the same handler.
//
// When the server drains, each client that has connected gets an answer, or a GOAWAY that excludes
// its request. Only silent connections are closed without one ([Server.Serve]).
//
// # Cost
//
// Lists are written in pieces of 64 KiB. Their costs are encryption, system calls and one copy.
// Fasthttp itself writes pieces of 4 KiB. Each such piece was a TLS record and a system call, so a
// list took twice as long as the same file from nginx.
//
// The delivery of an event to a watch is a write. Seven tenths of its time are spent in the kernel
// and an eighth on encryption. A separate goroutine for each watch added a fifth. So over HTTP/1.1
// a [pump] writes as many bytes as the socket accepts without blocking. If bytes remain, the watch
// gets a goroutine until its client has caught up. A raw sendto, which Go's scheduler does not see,
// saved 9 % of a delivery (9.8 instead of 10.7 µs with 1,000 watches over TLS). But it raised the
// median delay of a delivery from 5.0 to 6.8 ms, so it was removed.
//
// An idle watch over HTTP/1.1 is one goroutine, which waits for its client to leave.
package listen
