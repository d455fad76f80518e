// Package access tells who a client is and what it may read, as upstream sees it.
//
// A TokenReview authenticates a bearer token, the cluster's client authority a certificate. A
// SubjectAccessReview authorizes a read from the cache, with all attributes that the apiserver
// uses, selectors included. Authenticators and the impersonation filter are k8s.io/apiserver's.
//
// Outcomes of reviews are remembered (outcomes.go), and clients take turns upstream (package fair).
// The library's caches bound numbers or time and keep whole questions, so a client without rights
// could fill the memory. Equal questions are asked once (reviews.go). A failed review is an outage,
// not a refusal. The next use of an outcome in its last quarter renews it: a busy client waits once.
//
// # Bounds
//
//	what                     | by             | filled by     | bound        | dropped
//	decisions                | user           | users         | 16 MiB       | largest holder's oldest
//	good tokens              | client address | token holders | 16 MiB       | largest holder's oldest
//	refused tokens           | client address | any client    | 8 MiB        | largest holder's oldest
//	reviews of access        | user           | users         | 50, 25 each  | none, they wait
//	reviews of tokens        | client address | any client    | 50, 25 each  | none, they wait
//	reviews that wait, each  | the same       | the same      | 32 MiB, 10 s | longest line's last
//
// Each outcome is dropped at most 10 s after its TTL. A dropped review counts as an unavailable
// upstream: the read is forwarded, the token answered with 503.
//
// # Upstream
//
// A request with a token is forwarded with that token and none of the proxy's credentials. The
// proxy impersonates the user of a certificate: name, uid, groups and extra. Values that headers
// would change, such as a name with a final space, are refused. Upstream judges the Impersonate
// headers of a client with a token. For a certificate, the apiserver's own filter judges them here,
// and the proxy impersonates the user that they name.
//
// # Observed in kube-apiserver
//
// A TokenReview of an unknown token has an error set. It counts as a refusal, or each try of an
// expired token would be reviewed. An impersonated user gets all its groups: without any, the
// apiserver adds those of service accounts to a service account's name. The functions that read a
// request's selectors read a rawSelector (k8s.io/kubernetes/pkg/registry/authorization/util).
package access
