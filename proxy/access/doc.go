// Package access tells who a client is and what it may read, as upstream sees it.
//
// A TokenReview authenticates a bearer token. The cluster's client authority authenticates a
// certificate. A SubjectAccessReview authorizes a read from the cache, with all attributes that the
// apiserver uses, selectors included. The authenticators and the impersonation filter come from
// k8s.io/apiserver.
//
// Outcomes of reviews are remembered (outcomes.go), and clients take turns upstream (package fair).
// The library's caches are not used: they bound only the number or age of entries and keep whole
// questions, so a client without rights could fill the memory. Equal questions are asked once
// (reviews.go). A failed review is an outage, not a refusal. The first use of an outcome in the
// last quarter of its TTL renews it in the background, so a busy client waits only once.
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
// Each outcome is dropped at most 10 s after its TTL. If a review is dropped, upstream counts as
// unavailable: a read is forwarded, and a token is answered with 503.
//
// # Upstream
//
// A request with a token is forwarded with that token and none of the proxy's credentials. The
// proxy impersonates the user of a certificate: name, uid, groups and extra. A header would change
// some values, such as a name with a final space. The proxy refuses them. Upstream judges the
// Impersonate headers of a client with a token. For a certificate, the apiserver's own filter
// judges them here, and the proxy impersonates the user that they name.
//
// # Observed in kube-apiserver
//
// A TokenReview of an unknown token has an error set. The proxy counts it as a refusal. Otherwise
// each try of an expired token would be reviewed. The proxy sends all groups of an impersonated
// user: if it sent none, the apiserver would add the service account groups to a service account's
// name. The functions that read a request's selectors read a rawSelector
// (k8s.io/kubernetes/pkg/registry/authorization/util).
package access
