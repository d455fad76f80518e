// Package read answers gets, lists and watches from the caches, or says why upstream has to.
//
//	Reader.Answer ─► parameters ─► right ─► feed ─► fresh state ─► get | list | watch.New
//
// The cache answers a GET whose path names a resource in the canonical way, whose Accept asks for a form
// that package wire writes, whose caller may read that, which does not impersonate, and whose parameters
// are all understood. It answers gets at a resourceVersion, lists and watches at one or of the most
// recent state, and pages whose resourceVersion the event log still holds. Every doubt has the verdict
// [Beyond]: upstream then gives its own answer or words its own error.
//
// # Forms
//
// Protobuf comes from a cache of its own, in upstream's bytes. Custom resources have no protobuf: as for
// upstream, the next clause of the Accept header counts then. Metadata and compressed segments are
// derived from pages once (package derived). YAML, and what a selector picks, is made for each request.
// Long lists are indented, and selected ones compressed, while they are written: to make one of 30 MB in
// memory meant copies of up to 190 ms that nothing can interrupt.
//
// Tables are forwarded, and Table watches are not shared. Cells tell ages as of the moment in which they
// are written. Kube-apiserver keeps an event's encoded object for all watches, so the column
// definitions, which belong to a watch's first event, come with later ones at random. Two Table watches
// of the apiserver's own differ.
//
// # When upstream is lost
//
// A feed says for how long nobody has kept its cache up to date: since its stream broke, or since a
// freshness run had no answer. The latter finds an upstream that accepts connections and does not
// answer. Reads that may be old are then served with a Warning, up to a bound. Reads of the most recent
// state are forwarded, and wait for lostPatience. Watches stay open.
//
// # Learnt from the real apiserver
//
// A read at a resourceVersion that nobody has reached gets the apiserver's own 504 after three seconds.
// Upstream's revision is asked for before. Reads that go to etcd there (events, one object by name at an
// exact resourceVersion) do not wait and are worded differently, so they are forwarded.
//
// A page at a resourceVersion has a continue token whenever the listed collection goes on, selected or
// not. Its start key begins with a slash when the apiserver's cache wrote it.
package read
