// Package exchange defines requests and answers for handlers, independent of protocols. These are
// plain types. They hold no reference to a server's buffers and know no transport.
//
//	Request    what a client asks, who it is, and its connection
//	Body       a request's body, which knows whether it was read to its end
//	Route      what a method and a path mean, read by k8s.io/apiserver's RequestInfo
//	Response   an answer with one of several bodies
//	Stream     an endless body, written to a ChunkWriter
//	Tunnel     what follows an upgrade
//
// Only canonical paths are answered from the cache. Upstream interprets all other paths.
package exchange
