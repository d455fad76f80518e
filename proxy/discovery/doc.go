// Package discovery answers reads of discovery and OpenAPI from copies that upstream has just
// confirmed.
//
// For each read, the proxy asks upstream with the copy's ETag. Upstream answers 304, or sends a new
// document. All clients that wait for the same document share this revalidation. It begins after
// they have asked, so a client sees each CustomResourceDefinition that was established before.
//
// # What upstream sends (1.36)
//
//	path                              ETag
//	/api, /apis, aggregated           yes   revalidated
//	/openapi/v2, /openapi/v3/PATH     yes   revalidated
//	/openapi/v3/PATH?hash=ETAG        yes   revalidated
//	/openapi/v3                       no    not kept; clients that wait share one answer
//	/api, /apis and below, /version   no    forwarded; equal requests share (package forward)
//
// Upstream declares documents with a hash immutable. But it redirects a request with an old hash to
// the new document, and its index names the old hash for some time after the document has changed.
// A copy that is not revalidated would hide a new resource for that time.
//
// All ETags are strong and hash the content, not its form: JSON, protobuf and gzip have the same
// ETag. So a copy belongs to an Accept header and to gzip. The 304 of discovery takes one tag, the
// 304 of OpenAPI takes lists, weak tags and *. Requests with more than one strong tag are forwarded,
// like all requests with unusual parameters or headers, and HEAD.
//
// # Access
//
// Each client is authorized for the path (nonResourceAttributes, verb get) before it gets anything.
// If the review does not allow it, the request is forwarded, and upstream refuses it. The documents
// do not depend on the client: kube-apiserver itself shows what aggregated APIs serve to everyone
// who may read discovery and OpenAPI. The proxy revalidates with its own credentials. This needs the
// ClusterRole system:discovery, which every authenticated user has by default. If upstream refuses
// the proxy or does not answer it, each client's request is forwarded.
//
// # Bounds
//
// Copies take at most the configured bytes; the least recently used is dropped. Clients cannot fill
// this memory with made-up requests: only answers with an ETag are kept, and equal ones only once.
package discovery
