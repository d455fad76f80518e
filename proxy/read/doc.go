// Package read answers gets, lists and watches from the caches, or says why upstream has to.
//
//	Reader.Answer ─► parameters ─► right ─► feed ─► fresh state ─► get | list | watch.New
//
// The cache answers a GET that names a resource by its canonical path. The caller, or the user that
// it impersonates, must be allowed to read it, package wire must know the form, and every parameter
// must be understood. The cache answers gets at a resourceVersion. It answers lists and watches at a
// resourceVersion or of the most recent state. It answers a page while the event log holds the
// page's resourceVersion. In every case of doubt upstream answers, and a [Reason] says why.
//
// # Forms
//
// Protobuf comes from a cache of its own, in upstream's bytes. Custom resources have no protobuf.
// For them the next clause of the Accept header counts, as in kube-apiserver. Metadata and
// compressed segments are derived from each page once (package derived). YAML and selected items
// are made for each request. Long lists are indented, and selected ones compressed, while they are
// written. When a body of 30 MB was made in memory first, one copy of it blocked for up to 190 ms.
//
// A Table needs two feeds, one of the objects and one of the rows that upstream made of them
// (package table). Each row is looked up by its object's key and resourceVersion, so the feeds need
// not be at the same resourceVersion. A read waits for a late row for a second, and then goes
// upstream. So a watch of Tables has a goroutine of its own. Rows are derived pieces until an age in
// them changes.
//
// # When upstream is lost
//
// A feed tells how long its cache has been out of date: since its stream broke, or since a
// freshness run got no answer. Such a run asks upstream for its current resourceVersion. It also
// detects an upstream that accepts connections but does not answer. If a read accepts an older
// state, the cache answers with a Warning, up to a maximum age. Reads of the most recent state are
// forwarded, and wait for lostPatience at most. Watches stay open.
//
// # Observed in kube-apiserver
//
// The apiserver answers a read at a future resourceVersion with 504 after three seconds. The proxy
// first asks for upstream's revision. The apiserver sends some reads to etcd (events, one object by
// name at an exact resourceVersion). These do not wait and fail with another message, so they are
// forwarded.
//
// A page at a resourceVersion has a continue token if the listed collection goes on, even if the
// selector matches nothing in the rest. If the apiserver's cache wrote the token, the start key in
// the token begins with a slash.
package read
