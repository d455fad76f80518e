// Package proxy serves clients: from the watch caches what they can answer as
// kube-apiserver would, everything else by forwarding it upstream unchanged.
//
//	server ─► route ─► access ─► cached? ─► get | list | watch ─► cache, wire ─► client
//	                       └──────► forward ────────────────────────────────► client
//
// It is one straight walk. Fasthttp is touched only in server.go, http1.go and strict.go.
// Handlers take a request and return a response, both of them plain types of this package,
// so that the same handlers are reached over HTTP/2 (http2.go). Connections are accepted here
// (listener.go), and TLS agrees on the protocol.
//
// # What is answered from the cache
//
// A GET whose path names a resource in the canonical way, whose Accept asks for a
// form that package wire writes, which its caller may have, which does not
// impersonate, and whose parameters are all understood: get at a resourceVersion; list and watch at one, or of the most
// recent state once the feed has shown that its cache is up to date (fresh.go);
// pages whose resourceVersion the event log still holds; watches from before the
// log only if lateMax are open already. The rest is Beyond, which is the
// answer to every doubt: upstream then gives its own answer or words its own error.
//
// Forwarded gets and lists that upstream could not tell apart share one answer
// (coalesce.go), but only if it was asked for after the last of them came: they
// are consistent reads, and upstream sees a crowd of them one request at a time. An
// answer of more than shareMax is not kept for the others; they ask for themselves.
//
// Everything but upgrades is forwarded over HTTP/2. Gets once had HTTP/1.1 connections of their own,
// read by the client's goroutine: 596 lines for 0.1 to 0.2 ms. The bound is what Go's
// ReverseProxy adds in the same run ('make bench').
//
// # Forms
//
// Protobuf is served from a cache of its own, in upstream's bytes. Custom resources
// have none: as for upstream, the next clause of the Accept header counts then.
//
// What is made of pages is kept in [Derived]: runs of metadata, and compressed
// segments of runs. A compressed segment may refer to the end of the run before it and
// is kept under both, so that a list in its parts is no larger than as a whole. Which
// objects of a page a selector picks out is remembered ([selection]); what is made of them is
// made for each request, as are YAML and indented JSON. Long lists are indented, and selected
// ones compressed, while they are written (oneOff): to make one of 30 MB in memory meant copies of
// up to 190 ms that nothing can interrupt, and all that time the collector and everybody waited.
//
// Tables are forwarded, and Table watches are not shared. They cannot be, byte for
// byte: cells tell ages as of the moment in which they are written, and kube-apiserver
// keeps the encoded object of an event for all of its watches, so that the column
// definitions, which belong to the first event of a watch, come with later ones or not
// as it happens. Two Table watches of the apiserver's own differ.
//
// # Cost
//
// What was learnt with bench/load, which puts the apiserver, the proxy and a floor side
// by side:
//
// A list costs what it costs to send its bytes, if they go out in large pieces
// (writeList). In pieces of the library's 4 KiB each was a TLS record and a system call
// of its own, and a list took twice as long as nginx takes for the file. In 64 KiB it is
// encryption, system calls and one copy.
//
// A list by a selector costs a look at each object, and from the third of its kind on a
// look at each page (selection.go). What takes long is to wait for the objects' memory,
// not to compare.
//
// A delivery to a watch is a write; the kernel takes seven tenths of it, encryption an
// eighth. To wake a goroutine for each watch took a fifth on top, so that those over
// HTTP/1 have none that waits for events: [pump] writes what a socket takes at once
// ([socket]), and a client that takes less gets a goroutine until it has caught up. What
// is due now and then (deadlines, bookmarks, reviews) sets a flag, and costs a delivery
// nothing but a look at it; an event is encoded once for all who watch in the same form
// (frame.go). It makes no garbage (TestAllocationBudgets).
// A raw sendto that Go's scheduler does not see saved 9 % of a delivery (9.8 µs, not 10.7, of 1,000
// by TLS) but delayed it (median 6.8 ms, not 5.0) and was only for HTTP/1. It is gone.
//
// An idle watch is one goroutine, which waits for its client to leave, and what it holds on
// to: its stack is small only if next to nothing is on it, and a request's headers
// are not needed any more (request.slim). Over HTTP/2 the library holds another 4 KiB
// to write from.
//
// # When upstream is lost
//
// A feed says for how long nobody has kept its cache up to date: since its stream broke, or
// since a freshness run had no answer, which finds an upstream that is there and says
// nothing within seconds (lost.go). Reads that may be old are then served with a Warning,
// up to a bound; those for the most recent state are upstream's to answer, which gets a few
// seconds to do so. Watches stay open.
//
// # Identity
//
// With authentication (package access), every request has a caller, and whatever is
// answered from the cache was authorized for that caller with all that the apiserver
// would look at. If nobody can tell, the read is forwarded: upstream asks itself. A
// forwarded request brings its caller's own token and nothing of the proxy's, or acts
// as the bearer of a certificate, whom the proxy impersonates. Requests share an
// answer of upstream's only if they have the same credentials.
//
// A request whose Connection header names a header that tells who it is from is
// refused: to obey it would be to send the request as somebody else's.
//
// An open watch is reviewed again from time to time (recheck.go), which kube-apiserver
// does not do: it ends when it was revoked.
//
// Without authentication the proxy serves loopback addresses and Unix sockets only, and requests
// act as the proxy. A request that carries an Authorization header is never
// answered from the cache and is forwarded without any of the proxy's own
// credentials; one that carries Impersonate headers is forwarded.
//
// A browser adds everything but a bearer token to any page's requests by itself: the place in
// the network, a certificate. So requests without a token are refused if a page of another origin
// may have caused them, by Host (DNS rebinding), Origin, Sec-Fetch-Site or a form's Content-Type;
// see browser.go.
//
// # What users share
//
// One mechanism, fairQueue, hands out places upstream, slots for dear reads (meter) and the
// workspace for one-off bodies. Users take turns, weighted by cost; a user's own claims are served
// in order. What waits is bounded in bytes, and the user with most waiting is refused first. Nobody
// holds a slot while it waits for the workspace or for a run that another read makes. The pieces of
// long answers take turns for slots, too: each holds one for as long as it is estimated to cost, so
// that a client which does not read keeps none for longer. The last processor is left to short
// reads. Without that, Go looks for what has come from the network every 10 ms only, and each
// goroutine that writes has 10 ms before the next: beside 300 unread lists a get took 290 ms, now 3.
//
// A watch whose client does not read holds one piece of 64 KiB, or a reference to one larger event,
// and polls nothing before that is written. A large event is written from the cache's own bytes.
// The pump evaluates cheap filters only: a watch with a dear one has its own goroutine.
//
// Connections wait outside fasthttp and reach it with whole heads of requests (head.go): a
// connection that has said nothing costs no buffer. The doc of cmd/watchproxy lists all bounds.
//
// # Learnt from the real apiserver
//
// Everything that the cache answers at a resourceVersion that nobody has reached is
// the apiserver's own 504 after three seconds; upstream's revision was asked for
// before. What reads etcd there (events, one object by name at an exact
// resourceVersion) does not wait and is worded differently, so it is forwarded.
//
// A page cut at a resourceVersion has a continue token whenever the listed
// collection goes on, selected or not, and its start key begins with a slash
// when the apiserver's cache wrote it.
package proxy
