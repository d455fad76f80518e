// Package listen serves the connections of one listener over HTTP/1.1 and HTTP/2, and passes
// requests to an [exchange.Handler]. It is the only package that imports fasthttp.
//
// Package h2 serves HTTP/2 with the same handler.
//
//	Server   accepts connections, and drains them
//	client   a connection over HTTP/1.1
//	borrowed a connection while fasthttp serves it: serve ─► render
//
// A stream takes the connection over from fasthttp and writes the chunks itself, in a goroutine of
// its own. A second one waits below TLS for the client to leave.
//
// When the server drains, each client that it has accepted gets an answer, or a GOAWAY that
// excludes its request. Only silent connections are closed without one ([Server.Serve]).
//
// Lists are written in pieces of 64 KiB. With fasthttp's own pieces of 4 KiB, each a TLS record and
// a system call, a list took twice as long as the same file from nginx.
package listen
