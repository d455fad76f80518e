// Package conn handles a client's connection below HTTP. It accepts the connection, negotiates TLS,
// limits its waits and writes, and counts it.
//
// A connection that waits costs a goroutine. The goroutine waits for one byte below the TLS layer,
// because a wait inside a TLS read keeps a large stack and a buffer ([Conn.WaitBelowTLS]). Over
// HTTP/2, this ends once the client is known ([FrameReader]).
//
// The pump of HTTP/2 writes many watches, so it must not wait for a client. [Conn.WriteSoon] keeps
// the bytes that the kernel does not accept, up to leftMax, until [Conn.Flush] writes them. These
// bytes are kept below TLS, because TLS may write its own answers at any time, and those do not
// wait either. [Conn.Write] waits until everything is written.
//
// TLS makes records of 16 KiB and writes each by itself. The [Conn] collects those of a piece and
// writes them once.
//
// During a drain, [Drain] limits the waits for requests over HTTP/1.1 and for handshakes.
package conn
