// Package forward sends requests upstream as they are and streams the answers back.
//
// A [Forwarder] sends a request with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. Everything except upgrades goes over HTTP/2. The forwarder drops
// hop-by-hop and X-Remote headers.
//
// [Sharing] lets equal gets and lists share one answer, and equal reads of discovery, too. These
// reads are consistent: a reader only gets the answer to a request that was sent after the reader
// arrived. Of several equal requests, upstream sees one at a time, or a few at a time if the proxy
// knows how long such a request takes. An answer above shareMax is not shared. Each of the other
// readers then sends a request of its own.
//
// A short answer of a Kubernetes API group is read to its end before it is written, because
// upstream sends no length with an answer above 2 KiB. If each piece were written when it arrives,
// each would wake the client.
//
// Forwarded gets once had their own HTTP/1.1 connections, read by the client's goroutine. That code
// saved 0.1 to 0.2 ms for each get, but took 596 lines. So it was removed. 'make bench' checks that
// the proxy adds no more time to a forwarded request than Go's ReverseProxy does in the same run.
package forward
