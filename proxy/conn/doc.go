// Package conn handles a client's connection below HTTP. It accepts the connection, negotiates TLS,
// limits its waits and writes, and counts it.
//
// A connection that waits costs a goroutine. With TLS, the goroutine waits for one byte below the
// TLS layer, because a wait inside a TLS read keeps a large stack and a buffer
// ([Conn.WaitBelowTLS]).
//
// The pump of HTTP/2 writes many watches, so it must not wait for a client. [Conn.WriteSoon] keeps
// the bytes that the kernel does not accept, up to leftMax, until [Conn.Flush] writes them. These
// bytes are kept below TLS, because TLS may write its own responses at any time. All other writes
// flush at once.
//
// TLS makes records of 16 KiB and writes each by itself. The [Conn] collects those of a piece and
// writes them once.
//
// For a client that does not read, the kernel keeps at most two unsent pieces of 64 KiB
// (TCP_NOTSENT_LOWAT). Without this limit, the kernel keeps up to 4 MiB for each client.
//
// A client that decodes a long response returns its HTTP/2 window in thousands of small frames. The
// [Conn] reads them together, and the kernel wakes it only for many bytes (gather.go).
//
// During a drain, [Drain] limits the waits for requests.
package conn
