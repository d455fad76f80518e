// Package read answers gets, lists and watches from the caches, or reports why upstream must do so.
//
//	parse ─► plan ─► authorize ─► open ─► source ─► fresh ─► state ─► body, or watch.New
//
// A plan is what a read asks for (plan.go), a source is the feed and the form that answer it
// (source.go). The first step that cannot go on says why upstream must answer ([Reason]).
//
// The cache answers a GET of a resource's canonical path if the caller, or the impersonated user,
// may read the resource, package wire supports the form, and every parameter is understood. The
// cache answers a page while the event log holds the page's resourceVersion.
//
// # Forms
//
// Protobuf comes from a separate cache, in upstream's bytes. Custom resources have no protobuf, so
// the next clause of the Accept header applies, as in kube-apiserver. Metadata and compressed
// segments are derived from each page once (package derived). Selected lists are compressed while
// they are written. Upstream answers for indented JSON, and for the metadata of resources that it
// makes from another version than the objects'. If a watch meets metadata with fields that are not
// known here, it ends, and upstream answers all later watches of metadata and Tables of the cache.
//
// A Table needs two feeds: the objects, and upstream's rows for these objects (package table). An
// object's key and resourceVersion identify its row, so the feeds may differ in resourceVersion. A
// get or a list waits up to a second for a late row. Rows are kept until an age in them changes.
//
// # When upstream is lost
//
// A feed reports how long its cache has been out of date: since its stream broke, or since a
// freshness run got no response. Such a run asks upstream for its current resourceVersion. If a
// read accepts an older state, the cache answers with a Warning, up to a maximum age. Reads of the
// most recent state are forwarded, and wait for lostPatience at most. Watches stay open.
//
// # Observed in kube-apiserver
//
// The apiserver answers a read at a future resourceVersion with 504 after three seconds. The proxy
// first asks for upstream's revision. The apiserver sends some reads to etcd (events, one object by
// name at an exact resourceVersion). These reads fail at once, so the proxy forwards them.
//
// A page at a resourceVersion has a continue token if the collection goes on, even if the selector
// matches nothing there. Keys in tokens of the apiserver's cache begin with a slash.
package read
