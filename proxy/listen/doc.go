// Package listen serves the connections of one listener over HTTP/1.1 and HTTP/2, and hands
// requests to a [Handler]. It is the only package that knows fasthttp.
//
// Fasthttp gets whole heads of requests (package conn). Streams take the connection over and write
// chunks themselves. HTTP/2 is x/net's server, with the same handler.
//
// # Cost
//
// A list costs as much as sending its bytes, if they go out in large pieces. In fasthttp's own
// pieces of 4 KiB each was a TLS record and a system call, and a list took twice as long as nginx
// takes for the file. In pieces of 64 KiB it is encryption, system calls and one copy.
//
// A delivery to a watch is a write. The kernel takes seven tenths of it, encryption an eighth. A
// goroutine for each watch added a fifth. So over HTTP/1.1 a [pump] writes what a socket takes at
// once, and a client that takes less gets a goroutine until it has caught up. A raw sendto that
// Go's scheduler does not see saved 9 % of a delivery (9.8 instead of 10.7 µs with 1,000 watches
// over TLS) but raised its median delay from 5.0 to 6.8 ms. It is gone.
//
// An idle watch is one goroutine, which waits for its client to leave. Over HTTP/2 the library
// holds another 4 KiB to write from.
package listen
