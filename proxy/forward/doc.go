// Package forward sends requests upstream as they are and streams the answers back.
//
// A [Forwarder] sends a request with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. Everything except upgrades goes over HTTP/2. It drops hop-by-hop
// and X-Remote headers.
//
// [Sharing] lets equal gets and lists share one answer. They are consistent reads, so a reader may
// only have the answer to a request that is sent after the reader came. Upstream sees one of equal
// requests at a time, or a few if the time that they take is known. An answer above shareMax is not
// kept; each of the others asks for itself.
//
// A short answer of a Kubernetes API group is read to its end before it is written. Upstream tells
// no length above 2 KiB, and each piece would wake the client.
//
// Forwarded gets once had their own HTTP/1.1 connections, read by the client's goroutine. These 596
// lines saved 0.1 to 0.2 ms, and are gone. The bound is what Go's ReverseProxy adds in the same run
// ('make bench').
package forward
