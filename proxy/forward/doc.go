// Package forward sends requests upstream as they are and streams the answers back.
//
// A [Forwarder] sends a request with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. Everything except upgrades goes over HTTP/2. The forwarder drops
// hop-by-hop and X-Remote headers.
//
// [Sharing] lets equal gets and lists share one answer. These reads are consistent: a reader only
// gets the answer to a request that was sent after the reader arrived. Upstream sees one of several
// equal requests at a time. If the proxy knows how long such a request takes, upstream sees a few
// at a time. An answer above shareMax is not shared. Each of the other readers then sends a request
// of its own.
//
// A short answer of a Kubernetes API group is read to its end before it is written. Upstream sends
// no length with an answer above 2 KiB. If each piece were written when it arrives, each piece
// would wake the client.
//
// Forwarded gets once had their own HTTP/1.1 connections, read by the client's goroutine. That code
// saved 0.1 to 0.2 ms. It took 596 lines, and was removed. 'make bench' checks that the proxy adds
// no more time to a forwarded request than Go's ReverseProxy does in the same run.
package forward
