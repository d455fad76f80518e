// Package proxy serves clients. It answers from the watch caches when they give the same response
// as kube-apiserver, and forwards all other requests unchanged. .github/ARCHITECTURE.md follows a
// list, an event and a write function by function.
//
//	exchange/    requests, parameters, responses, routes, statuses: plain types
//	conn/        a client's connection below HTTP: TLS, heads of requests, writes that do not wait
//	listen/      a listener, and HTTP/1.1
//	h2/          HTTP/2: frames, streams, and the pump that writes its watches
//	read/        gets, lists and watches from the caches
//	table/       the rows of Tables: upstream's cells, with current ages
//	derived/     bytes that are made once for each page of the cache
//	watch/       an open watch
//	forward/     forwarding, shared responses, tunnels
//	access/      authentication and authorization; requests that web pages may have made
//	grants/      the namespaces that a user may read, for views that show only those
//	issuer/      the proxy's own certificates
//	fair/        slots, processors and memory, shared by users
//	audit/       the audit log of requests that upstream does not receive
//	wire/        encodings
//	projection/  objects with only some of their fields
//	metrics/     counts of requests
//	admin/       /metrics, /livez, /readyz, /status and the status page
//
// [Server.Handle] checks a request and authenticates its caller. Then it asks the cache for a
// [read.Result], and answers or forwards the request. [Server.Serve] drains at the end.
//
// With authentication (package access) every request has a caller. Reviews authorize each response
// from the cache. A forwarded request has its caller's token and none of the proxy's credentials.
// For a certificate, the proxy impersonates its user. Only requests with the same credentials share
// responses. See also [exchange.HidesIdentity].
//
// Without authentication the proxy serves only loopback addresses, with its own rights. It forwards
// Impersonate headers. To a request with an Authorization header it adds no credentials of its own.
package proxy
