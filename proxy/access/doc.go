// Package access tells who a client is and what it may read, as the apiserver
// behind the proxy sees it.
//
// Bearer tokens are reviewed by TokenReview, client certificates verified by the
// cluster's client authority, reads from the cache by SubjectAccessReview with all
// that the apiserver itself would look at, selectors included. Authenticators of
// requests and the impersonation filter are k8s.io/apiserver's own code.
//
// The outcomes of reviews are remembered here (outcomes.go), and clients take turns at
// upstream (package fair). The library's caches have a bound in numbers or in time, and keep
// questions as clients wrote them: a client that may read nothing could fill the memory.
// A crowd with the same question asks once (reviews.go). A review which failed is told
// from one that said no: the first is an outage, and nobody's fault.
// In the last quarter of its time, an outcome is renewed as soon as somebody needs it: a client
// that reads all the time waits for upstream once, not once a minute.
//
// # Bounds
//
//	what                     | by             | who fills it        | bound          | what is shed
//	decisions                | user           | who may log in      | 16 MiB         | the largest holder's oldest
//	good tokens              | client address | who has tokens      | 16 MiB         | the largest holder's oldest
//	refused tokens           | client address | anybody             | 8 MiB          | the largest holder's oldest
//	reviews of access        | user           | who may log in      | 50, 25 a user  | none, they wait
//	reviews of tokens        | client address | anybody             | 50, 25 a user  | none, they wait
//	reviews that wait, each  | the same       | the same            | 32 MiB, 10 s   | the last of the longest line
//
// Each outcome ends with its TTL and is dropped at most 10 s later. A review that is shed
// counts as upstream not answering: the read is forwarded, the token answered with 503.
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
// A TokenReview of an unknown token has an error set. It is taken as the no that it is, or
// a client with an expired token would have the apiserver review it at each attempt.
//
// The groups of an impersonated user are sent in full, system:authenticated included:
// without any, the apiserver gives a user whose name is that of a service account the
// groups of service accounts, which a certificate of that name does not have.
//
// A rawSelector in a SubjectAccessReview is read by the functions that read the selector of
// a request, and RBAC, the node authorizer and webhooks see the result of that
// (k8s.io/kubernetes/pkg/registry/authorization/util).
package access
