// Package h2 serves connections on which TLS agreed on HTTP/2.
//
// x/net's Framer reads frames, and its hpack reads and writes headers. Connections, streams and
// writes are this package's own. x/net's server costs a serve loop, two goroutines for each stream
// and several hand-overs for each frame. With 1,000 connections of one watch each, an event cost 36
// µs of processor time for each watch with x/net's server, and 16 µs with this package. With 100
// watches on a connection, the costs were 24 µs and 5 µs.
//
//	Conn     one connection: a reader, a writer, streams and an intake
//	reader   frames from the client, in the connection's goroutine
//	writer   frames to the client; its lock guards the streams, too
//	streams  the table of open streams, and GOAWAY
//	intake   the window in which bodies are received (upload.go)
//	stream   one request and its response; a handler's goroutine, none once a watch is open
//	upload   the body of a request
//	sender   the data of a response, and its wait for room and windows
//	pumped   an open watch without a goroutine
//	pump     lets connections write the events of all their watches, each in one write
//
// # Writes
//
// Frames are appended to the writer's buffer under its lock, as far as the flow-control windows
// allow. A goroutine that has appended frames writes the buffer once, if no other goroutine writes.
// It waits for the client only if it is a handler's goroutine. A separate goroutine writes
// remaining and new bytes, and lets watches append events between long responses. So one write
// contains frames of several streams, and a slow connection delays all its streams.
//
// A stream that lacks room in the buffer or in the connection's window waits in a queue. Each
// unlock of the writer wakes the first stream of a queue if there is room for it. A stream that
// lacks room in its own window is in no queue. So a WINDOW_UPDATE wakes one stream, however many
// wait. A watch without a window keeps one piece of at most 64 KiB, until a WINDOW_UPDATE or the
// stall timeout.
//
// A stream that has used up its window goes on when 64 KiB are there, or half of a smaller window,
// or what the rest needs. After 50 ms it takes any window. Go's transport returns 4 KiB at a time;
// a client that decodes would get each of them in a write of its own.
//
// If a WINDOW_UPDATE is not enough for such a stream, reads of the connection wait for up to 4 ms
// to bring more ([conn.Conn.Gather]), for 12 ms or until the response ends. A sync of 44 MB by one
// of 16 clients that decode then takes the proxy 97 ms of processor time instead of 214 ms.
package h2
