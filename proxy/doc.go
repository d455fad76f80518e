// Package proxy serves clients: from the watch caches what they can answer as kube-apiserver would,
// everything else by forwarding it upstream unchanged. It wires the packages below it, admits requests,
// and drains.
//
//	a list       listen ─► proxy ─► read ─► derived ─► listen
//	an event     watchcache ─► watch ─► listen
//	a forward    listen ─► proxy ─► forward ─► listen
//
//	exchange/    requests, responses, routes, statuses: plain types
//	conn/        a client's connection below HTTP: TLS, heads of requests, writes that do not wait
//	listen/      HTTP/1.1 and HTTP/2, the pump that writes watches
//	read/        what a read asks for, and its answer from a cache
//	derived/     what is made of the cache's pages once
//	watch/       an open watch
//	forward/     forwarding, shared answers, tunnels
//	access/      authentication and authorization
//	fair/        how users share places, processors and memory
//	wire/        encodings
//	metrics/     counts of requests
//	browser/     what a web page may have made a browser send
//	admin/       /metrics, /livez, /readyz, /status and the status page
//
// [Server.Handle] is one straight walk: refuse, authenticate, ask the cache for a [read.Verdict],
// answer or forward.
//
// # Identity
//
// With authentication (package access) every request has a caller. An answer from the cache was
// authorized for that caller with all attributes that the apiserver would look at. If nobody can tell,
// the read is forwarded, and upstream decides. A forwarded request carries its caller's own token and
// nothing of the proxy's; the bearer of a certificate is impersonated. Requests share an answer of
// upstream's only if they have the same credentials.
//
// A request whose Connection header names an identity header is refused. A proxy that obeyed it would
// drop that header, and the request would arrive as somebody else's.
//
// Without authentication the proxy serves loopback addresses and Unix sockets only, and requests act as
// the proxy. A request with an Authorization header is never answered from the cache, and is forwarded
// without the proxy's credentials. A request with Impersonate headers is forwarded.
package proxy
