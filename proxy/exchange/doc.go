// Package exchange defines requests and responses for handlers, independent of protocols. These are
// plain types. They have no references to a server's buffers or to transports.
//
//	Request    a client's request, with its sender and its connection
//	Body       a request's body, which records whether it was read to its end
//	Route      the meaning of a method and a path, from k8s.io/apiserver's RequestInfo
//	Response   a response with one of several bodies
//	Stream     an endless body, written to a ChunkWriter
//	Tunnel     the connection after an upgrade
//
// Only canonical paths are answered from the cache. Upstream interprets all other paths.
package exchange
