// Package discovery answers reads of discovery and OpenAPI from copies that upstream has just
// confirmed.
//
// For each read, the proxy asks upstream with the copy's ETag. Upstream answers 304, or sends a new
// document. All clients that wait for the same document share this revalidation. It begins after
// they have asked, so a client sees each CustomResourceDefinition that was established before. A
// revalidation and an unchanged document cost upstream about the same if the document is short. So
// a crowd's revalidations of a document are 50 ms apart.
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
// Upstream declares documents with a hash immutable. But it redirects requests with an old hash, and
// its index names the old hash for some time after a change. A copy that is not revalidated would
// hide a new resource for that time.
//
// All ETags are strong and the same for JSON, protobuf and gzip. So a copy belongs to an Accept
// header and to gzip. Upstream's handlers disagree on conditions other than one strong tag. Such
// requests are forwarded, like HEAD and all requests with unusual parameters or headers.
//
// # Access
//
// Each client is authorized for the path (nonResourceAttributes, verb get) before it gets anything.
// If the review does not allow it, its request is forwarded. The documents do not depend on the
// client: kube-apiserver itself shows those of aggregated APIs to all who may read OpenAPI. The
// proxy revalidates with its own credentials. This needs the ClusterRole system:discovery, which
// every authenticated user has by default. If upstream refuses, requests are forwarded.
//
// # Bounds
//
// Copies take at most the configured bytes; the least recently used is dropped. Made-up requests
// cannot fill them: only answers with an ETag are kept, and equal ones only once.
package discovery
