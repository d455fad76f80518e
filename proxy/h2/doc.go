// Package h2 serves connections on which TLS agreed on HTTP/2.
//
// x/net's Framer reads frames, and its hpack reads and writes headers. The connection, the streams
// and the writes are ours, because the proxy writes ready bytes: x/net's server costs a serve loop,
// two goroutines for each stream and several hand-overs for each frame. With 1,000 watches on a
// connection each, an event took its process 36 µs a watch; it takes 16 µs now. With 100 watches on
// a connection, 24 µs became 5.
//
//	Conn     one connection; its goroutine reads frames
//	stream   one request and its answer; a handler's goroutine, none once a watch is open
//	Pump     writes what has happened to the watches of a connection, in one write
//	frame/   frames and headers as bytes
//
// # Writes
//
// Frames are appended to the connection's buffer under its lock, as far as the windows allow.
// Whoever appends becomes the writer unless there is one, and writes the buffer once. It hands TLS
// what the socket takes at once, or waits for the client if it may. A goroutine of its own writes what
// is left or has been added, with turns of watches between long answers. So frames of several streams
// leave in one write, and a slow connection is backpressure for all that write to it.
//
// A stream that lacks room in the buffer or the connection's window stands in line for it. Each
// unlock of the connection wakes the first in line if there is something for it. A stream that lacks
// a window of its own stands in no line. A WINDOW_UPDATE therefore wakes one stream, however many
// there are. A watch without a window is parked with one piece of at most 64 KiB, until a
// WINDOW_UPDATE or the stall timeout. Reading WINDOW_UPDATEs in batches gained nothing.
//
// # Bounds of a connection
//
//	what                            | bound                    | beyond it
//	streams, and handlers that run  | 1,000                    | REFUSED_STREAM
//	header list                     | limits.headerBytes       | 431
//	frame that is read              | 16 KiB                   | FRAME_SIZE_ERROR
//	body before it is read          | 128 KiB, 4 MiB for all   | FLOW_CONTROL_ERROR
//	answers that are not read       | 64 KiB                   | ENHANCE_YOUR_CALM
//	time without reading            | limits.write, stall      | the stream or connection is cut
//	time for preface, SETTINGS      | 10 s, 2 s                | closed
//	silence                         | 30 s, then 15 s          | PING, then closed
package h2
