// Package conn is a client's connection below HTTP: it is accepted, agrees on TLS, waits for
// requests, is read ahead of a handler, and is written without waiting for the client.
//
// A connection waits outside fasthttp until the head of a request is complete (head.go). Until then
// it costs a goroutine and a buffer no larger than what has come. Over TLS it waits for one byte
// below TLS: a goroutine that waits inside a TLS read keeps a large stack ([Conn.WaitBelowTLS]).
//
// A watch is written by a pump that must not wait. For that time the [Conn] is nonblocking: it
// keeps what the kernel does not take, up to leftMax, until Settle writes it. TLS may write answers
// of its own at any time, so the limit holds below TLS.
//
// The kernel keeps at most two pieces of what a client does not read (TCP_NOTSENT_LOWAT). Without
// that bound it keeps up to 4 MiB for each client.
package conn
