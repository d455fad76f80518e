// Package forward sends requests upstream unchanged and streams the responses back.
//
// A [Forwarder] sends a request with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. It drops hop-by-hop and X-Remote headers.
//
// Many clients share an HTTP/2 connection. The apiserver ends such a connection after each response
// to a request without valid credentials (its feature gate UnauthenticatedHTTP2DOSMitigation). The
// other requests go on, except those that arrive later. Those have to be sent again. In an earlier
// version, two clients without valid credentials made a fifth of others' POSTs fail. So requests
// with the proxy's credentials, with tokens that the proxy has verified, and with other credentials
// do not share connections, and the last kind uses HTTP/1.1. Only requests without a time limit use
// HTTP/2 nevertheless: watches and logs, because each would hold a connection, and requests to pods
// and services, because over HTTP/1.1 the apiserver drops the rest of an upload when the response
// begins. Such uploads share connections only with each other. Upgrades need HTTP/1.1.
//
// An apiserver also ends connections when it stops, or with --goaway-chance. So a body below 64 KiB
// is read before its request is sent. The transport can then send a write again if upstream has
// refused it or has received nothing of it.
//
// [Sharing] lets equal gets, lists and reads of discovery share one response. These reads are
// consistent: each reader receives the response to a request that was sent after the reader
// arrived. Upstream receives one of several equal requests at a time. If the proxy knows how long
// such a request takes, upstream receives a few at a time. A response above shareMax is not shared.
// Each of the other readers then sends its own request.
//
// A short response of a Kubernetes API group is read completely before it is written. Upstream
// sends no length with a response above 2 KiB. Pieces written on arrival would each wake the
// client.
//
// An earlier version sent gets over separate HTTP/1.1 connections, which the client's goroutine
// read. This saved 0.1 to 0.2 ms for each get, but needed 596 lines, so it was removed. 'make
// bench' checks that the proxy adds no more time to a forwarded request than Go's ReverseProxy does
// in the same run.
package forward
