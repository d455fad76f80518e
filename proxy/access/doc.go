// Package access tells who a client is and what it may read, as the apiserver
// behind the proxy sees it.
//
// Bearer tokens are reviewed by TokenReview, client certificates verified by the
// cluster's client authority, reads from the cache by SubjectAccessReview with all
// that the apiserver itself would look at, selectors included. All of it is
// k8s.io/apiserver's own code: its request authenticators, its caches of decisions,
// its webhook authorizer, its impersonation filter. What is added here is that a
// crowd with the same question asks once (reviews.go), that the caches of tokens have
// a bound in numbers as well as in time (tokens.go), and that a review which failed is
// told from one that said no: the first is an outage, and nobody's fault.
//
// # Upstream
//
// A client that brings a token has its requests forwarded with that token and nothing
// of the proxy's. A certificate cannot be forwarded, so that its bearer is impersonated
// with the proxy's credentials: name, uid, groups and extra are sent as they are. What
// could not arrive as it was sent, such as a name with a space at its end, is refused:
// another user would arrive. Impersonate headers of a client with a token are
// upstream's to judge; those of a client with a certificate are judged here, by the
// apiserver's own filter, and then replaced by whom they name.
//
// # Learnt from the real apiserver
//
// A TokenReview of an unknown token has an error set, which the library's cache does
// not keep. It is taken as the no that it is, or a client with an expired token would
// have the apiserver review it at each attempt.
//
// The groups of an impersonated user are sent in full, system:authenticated included:
// without any, the apiserver gives a user whose name is that of a service account the
// groups of service accounts, which a certificate of that name does not have.
package access
