// Package forward sends requests upstream unchanged and streams the responses back.
//
// A [Forwarder] sends a request with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. It drops hop-by-hop and X-Remote headers.
//
// Many clients share an HTTP/2 connection. The apiserver ends it after a response to a request
// without valid credentials (its feature gate UnauthenticatedHTTP2DOSMitigation), when it stops,
// and with --goaway-chance. The transport sends requests that upstream has not processed again, if
// it still has their bodies. So a body up to 64 KiB is read before its request takes a slot and is
// sent, and a longer one if the user's memory has room; otherwise it uses HTTP/1.1. Requests with
// the proxy's credentials, with tokens that the proxy has verified, and with other credentials do
// not share connections, and the last kind uses HTTP/1.1, over which writes can fail while a server
// stops. Watches and logs use HTTP/2 nevertheless, because each would hold a connection.
//
// A pod or service behind a proxy subresource chooses the headers of its response. Those above
// [HeaderMax] are dropped, and the client gets 502. Above 10 MiB, Go's transport ends an HTTP/2
// connection, so these requests use HTTP/1.1. With a body, they use HTTP/2 connections of their
// own, because over HTTP/1.1 the apiserver drops the rest of an upload when the response begins:
// there, a pod with such headers can still end other uploads to pods.
//
// If a request fails, the client's library may send it again. Client-go repeats any verb after 429
// or 5xx with Retry-After, other libraries only some. So Retry-After must not follow a write that
// upstream may have executed (TestFailuresOfUpstream):
//
//	failure                          | executed? | read               | write
//	too many requests wait           | no        | 429, Retry-After   | 429, Retry-After
//	no connection to upstream        | no        | 503, Retry-After   | 503, Retry-After
//	upstream refuses the proxy       | no        | 503, Retry-After   | 503, Retry-After
//	GOAWAY or RST before it is read  | no        | sent again         | sent again
//	connection or stream breaks      | perhaps   | 503, Retry-After   | 502
//	no response in time              | perhaps   | 504                | 504
//	the proxy ends before a response | perhaps   | 503, Retry-After   | 504
//	response breaks off              | yes       | breaks off         | breaks off
//	client leaves                    | perhaps   | connection ends    | connection ends
//	panic in the proxy               | perhaps   | 500                | 500
//
// [Sharing] lets equal gets, lists and reads of documents share a response. If it breaks off, all
// its readers get 503.
package forward
