// Package proxy serves clients. If the watch caches can answer a request as kube-apiserver would,
// it answers from them. It forwards all other requests unchanged. It connects the packages below
// it, admits requests, and drains.
//
//	a list       listen ─► proxy ─► read ─► derived ─► listen
//	an event     watchcache ─► watch ─► listen
//	a forward    listen ─► proxy ─► forward ─► listen
//
//	exchange/    requests, responses, routes, statuses: plain types
//	conn/        a client's connection below HTTP: TLS, heads of requests, writes that do not wait
//	listen/      a listener, HTTP/1.1, the pump that writes its watches
//	h2/          HTTP/2: frames, streams, and a pump for each connection's watches
//	read/        what a read asks for, and its answer from a cache
//	table/       the rows of Tables: upstream's cells, with ages of now
//	query/       the parameters of a read
//	derived/     bytes that are made once for each page of the cache
//	watch/       an open watch
//	discovery/   copies of discovery and OpenAPI that upstream has confirmed
//	forward/     forwarding, shared answers, tunnels
//	access/      authentication and authorization
//	fair/        how users share slots, processors and memory
//	wire/        encodings
//	metrics/     counts of requests
//	browser/     requests that a web page may have made a browser send
//	admin/       /metrics, /livez, /readyz, /status and the status page
//
// [Server.Handle] checks a request and authenticates its caller. Then it asks the cache for a
// [read.Verdict], and answers or forwards the request.
//
// # Identity
//
// With authentication (package access) every request has a caller. Each answer from the cache is
// authorized for the caller, or for a user that the caller may impersonate, with all attributes
// that the apiserver would look at. If upstream does not answer the review, the read is forwarded.
// A forwarded request carries its caller's token and none of the proxy's credentials. The proxy
// impersonates a caller with a certificate. Only requests with the same credentials share answers.
//
// A request whose Connection header names an identity header is refused. A proxy would have to drop
// that identity header, and upstream would then attribute the request to another user.
//
// Without authentication the proxy serves only loopback addresses and Unix sockets, and requests
// act as the proxy. A request with an Authorization header is forwarded without the proxy's
// credentials. A request with Impersonate headers is forwarded.
package proxy
