// Package conn handles a client's connection below HTTP. It accepts the connection, negotiates TLS
// and waits for requests. It can read ahead while a handler runs, and write without waiting for the
// client.
//
// A connection waits outside fasthttp until the head of a request is complete (head.go). Until then
// it costs a goroutine and a buffer. The buffer is no larger than the bytes that have arrived. With
// TLS, the goroutine waits for one byte below the TLS layer, because a wait inside a TLS read keeps
// a large stack ([Conn.WaitBelowTLS]).
//
// A pump writes many watches, so it must not wait for a client. While the pump writes, the [Conn]
// is nonblocking. It keeps the bytes that the kernel does not accept, up to leftMax, until Settle
// writes them. These bytes are kept below TLS, because TLS may write its own responses at any time.
//
// TLS makes records of 16 KiB and writes each by itself. The [Conn] collects those of a piece and writes
// them once.
//
// For a client that does not read, the kernel keeps at most two unsent pieces of 64 KiB
// (TCP_NOTSENT_LOWAT). Without this limit, the kernel keeps up to 4 MiB for each client.
//
// A client that decodes a long response returns its HTTP/2 window in thousands of small frames. The
// [Conn] reads them together, and the kernel wakes it only for many bytes (gather.go).
//
// During a drain, the [Listener] passes on what the kernel has queued, and [Drain] limits the waits
// for requests.
package conn
