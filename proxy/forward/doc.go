// Package forward sends requests upstream as they are and streams the answers back.
//
// A [Forwarder] passes one request on: with the client's own credentials, as a user whom the proxy
// impersonates, or as the proxy. Everything but upgrades goes over HTTP/2. Headers of one hop and
// X-Remote headers do not pass.
//
// [Sharing] lets equal gets and lists share one answer. They are consistent reads, so only a request
// that is sent after a reader came may answer that reader. Upstream sees a crowd one request at a time,
// or a few at a time where it is known how long they take. An answer of more than shareMax is not kept
// for the others; they ask for themselves.
//
// Short answers of Kubernetes' own API groups are read to their end before they are written: upstream
// does not tell the length of an answer above 2 KiB, and each piece would wake the client.
//
// Forwarded gets once had HTTP/1.1 connections of their own, read by the client's goroutine: 596 lines
// for 0.1 to 0.2 ms. They are gone. The bound is what Go's ReverseProxy adds in the same run
// ('make bench').
package forward
