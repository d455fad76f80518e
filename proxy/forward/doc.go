// Package forward sends requests upstream as they are and streams the answers back.
//
// A [Forwarder] sends a request with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. Everything except upgrades goes over HTTP/2. It drops hop-by-hop
// and X-Remote headers.
//
// [Sharing] lets equal gets and lists share one answer. These reads are consistent: a reader only
// gets the answer to a request that is sent after the reader came. Of equal requests, upstream sees
// one at a time. If the time that they take is known, it sees a few at a time. An answer above
// shareMax is not shared. Each of the other readers then sends a request of its own.
//
// A short answer of a Kubernetes API group is read to its end before it is written. Upstream sends
// no length with an answer above 2 KiB. If each piece were written as it comes, each would wake the
// client.
//
// Forwarded gets once had their own HTTP/1.1 connections, read by the client's goroutine. That code
// saved 0.1 to 0.2 ms. It took 596 lines, and was removed. 'make bench' bounds the time that the
// proxy adds to a forwarded request: at most what Go's ReverseProxy adds in the same run.
package forward
