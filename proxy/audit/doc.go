// Package audit writes an audit log of the requests that the proxy itself answers. The log and its
// policy file have the apiserver's formats (audit.k8s.io/v1).
//
// The apiserver audits each forwarded request, under the same Audit-Id. This log has the others:
// those answered from the cache, refused here, or answered with the shared response to another
// request. With the apiserver's own policy, the two logs together have each request. A forwarded
// one is in both if its client left, or if the proxy stopped waiting for upstream. The annotation
// watchproxy.dev/source is cache, proxy (refused or failed here) or shared.
//
// # Differences from the apiserver's events
//
// All stages up to the response are written when it is ready, before its first byte. So each
// response follows its event, and ResponseComplete does not wait for the client, except for an open
// watch. RequestReceived has the time when the request arrived.
//
// If the policy wants a response's body (level RequestResponse), gets and lists are forwarded and
// the apiserver audits them. The cache keeps bytes, which it could not write as JSON objects.
// Watches have no bodies in the apiserver's log either.
//
// Without authentication, the user of all requests is system:anonymous. The requests have the
// annotation watchproxy.dev/authentication=none and no authorization annotations.
//
// A shared response has authorization annotations only if the proxy has requested the decision. The
// apiserver authorized the original request, which had the same credentials.
//
// The event of an unknown client has the first 512 bytes of the URI and no header longer than that.
// Of its query, the last 512 bytes count: watch, and a field selector that is only a name.
//
// Some of the apiserver's annotations are missing: latencies, and those about legacy tokens. If a
// caller with a certificate may not impersonate, the event's status contains only the code.
// Malformed HTTP is not audited: the apiserver's HTTP server also refuses it before the audit.
//
// # Failures
//
// A request waits until its events are written, and is answered even if this fails. If the auditor
// is strict, the response is then a 500. The library's metrics count failures, see [Register].
package audit
