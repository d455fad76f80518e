// Package read answers gets, lists and watches from the caches, or says why upstream has to.
//
//	Reader.Answer ─► parameters ─► right ─► feed ─► fresh state ─► get | list | watch.New
//
// The cache answers a GET that names a resource by its canonical path and does not impersonate. The
// caller must be allowed to read it, package wire must know the form, and every parameter must be
// understood. The cache answers gets at a resourceVersion, lists and watches at one or of the most
// recent state, and pages whose resourceVersion the event log still holds. Every doubt has the
// verdict [Beyond]: upstream then answers, or words its own error.
//
// # Forms
//
// Protobuf comes from a cache of its own, in upstream's bytes. Custom resources have no protobuf,
// so the next clause of the Accept header counts for them, as it does upstream. Metadata and
// compressed segments are derived from each page once (package derived). YAML and selected items
// are made for each request. Long lists are indented, and selected ones compressed, while they are
// written. To make 30 MB in memory first meant copies of up to 190 ms that nothing can interrupt.
//
// Tables are forwarded, and Table watches are not shared. Cells hold ages as of the moment they
// were written. Kube-apiserver shares an event's encoded object among all watches, so the column
// definitions of a watch's first event come with later events at random. Two Table watches of one
// apiserver differ.
//
// # When upstream is lost
//
// A feed says for how long its cache has not been kept up to date: since its stream broke, or since
// a freshness run got no answer. The latter finds an upstream that accepts connections but does not
// answer. Reads that may be old are served with a Warning, up to a bound. Reads of the most recent
// state are forwarded, and wait for lostPatience. Watches stay open.
//
// # Observed in kube-apiserver
//
// A read at a future resourceVersion gets the apiserver's 504 after three seconds. The proxy asks
// for upstream's revision before. Reads that the apiserver sends to etcd (events, one object by
// name at an exact resourceVersion) do not wait and fail with other words, so they are forwarded.
//
// A page at a resourceVersion has a continue token if the listed collection goes on, whether or not
// the selector matches the rest. Its start key begins with a slash if the apiserver's cache wrote
// it.
package read
