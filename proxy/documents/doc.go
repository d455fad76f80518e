// Package documents answers reads of discovery and OpenAPI from copies that upstream has just
// confirmed.
//
// For each read, the proxy sends upstream a request with the copy's ETag. Upstream responds with
// 304 or with a new document. All clients that wait for the same document share this revalidation.
// It begins after their requests have arrived. So a client sees each CustomResourceDefinition that
// was established before its request. For a short document, it costs upstream about as much as the
// document. So revalidations are 50 ms apart after a burst of 20. One of the waiting clients leads:
// the revalidation uses its slot and its share of the workspace. A client whose other requests have
// these does not lead, and its request is forwarded.
//
// # ETags (1.37)
//
//	path                              ETag
//	/api, /apis, aggregated           yes   revalidated
//	/openapi/v2, /openapi/v3/PATH     yes   revalidated
//	/openapi/v3/PATH?hash=ETAG        yes   revalidated
//	/openapi/v3                       no    not kept; waiting clients share one response
//	/api, /apis and below, /version   no    forwarded; equal requests share (package forward)
//
// Upstream declares that documents at paths with a hash are immutable. But for some time after a
// change, its index names the old hash. Requests with an old hash are redirected. Without
// revalidation, a copy would hide a new resource for that time.
//
// All ETags are strong and the same for JSON, protobuf and gzip. So the key of a copy includes the
// Accept header and gzip. Upstream's handlers differ on conditions other than one strong tag.
// Requests with such conditions are forwarded, and so are HEAD and unusual parameters or headers.
//
// # Access
//
// Each client must be authorized for the path (nonResourceAttributes, verb get) before it receives
// a response. Otherwise its request is forwarded. The documents do not depend on the client:
// kube-apiserver itself shows the documents of aggregated APIs to all users with access to OpenAPI.
// The proxy revalidates with its own credentials. This needs the ClusterRole system:discovery,
// which every authenticated user has by default. If upstream refuses, requests are forwarded.
//
// # Bounds
//
// Copies use at most the configured bytes; the least recently used copy is dropped. Made-up
// requests cannot fill this memory: only responses with an ETag are kept, and equal responses only
// once.
package documents
