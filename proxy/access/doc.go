// Package access authenticates clients and authorizes their reads by upstream's rules.
//
// A TokenReview authenticates a bearer token. The cluster's client CA authenticates a certificate.
// A SubjectAccessReview authorizes a read from the cache, with all attributes that the apiserver
// uses, including selectors. The authenticators and the impersonation filter come from
// k8s.io/apiserver. Its caches are not used: they limit only the number or age of entries and keep
// whole requests, so a client without rights could fill the memory.
//
// Outcomes of reviews are remembered (reviewcache.go). Clients take turns upstream (package fair).
// Equal requests at the same time share one review (reviews.go). A failed review counts as an
// outage, not as a refusal. The first use of an outcome in the last quarter of its TTL renews it in
// the background, so a busy client waits only once.
//
// # Bounds
//
//	what                    | belongs to     | filled by     | bound        | dropped first
//	decisions               | user           | users         | 16 MiB       | largest holder's oldest
//	good tokens             | client address | token holders | 16 MiB       | largest holder's oldest
//	refused tokens          | client address | any client    | 8 MiB        | largest holder's oldest
//	access reviews upstream | user           | users         | 50, 25 each  | none, they wait
//	token reviews upstream  | client address | any client    | 50, 25 each  | none, they wait
//	waiting reviews of each | the same       | the same      | 32 MiB, 10 s | longest queue's last
//
// Each outcome is dropped at most 10 s after its TTL. If a review fails, the proxy forwards a read,
// and answers 503 to an unknown token and to a certificate that impersonates.
//
// A request with a token is forwarded with that token. For a certificate, the proxy impersonates
// its user, and refuses values that headers would change. Upstream checks a token client's
// Impersonate headers. For a client with a certificate, the proxy runs the apiserver's own filter,
// which checks these headers. A read from the cache acts as the impersonated user if reviews allow
// each part of the impersonation ([Access.EffectiveUser]). In doubt the read is forwarded.
//
// # Observed in kube-apiserver
//
// A TokenReview of an unknown token has an error in its status. This counts as a refusal. Otherwise
// each use of an expired token would cause a review. For an impersonated service account without
// groups, the apiserver adds the account's groups. Constrained impersonation (1.36) is tried before
// the verb impersonate. Both result in the same user, except for nodes. Kube-apiserver parses a
// rawSelector like a request's selectors (k8s.io/kubernetes/pkg/registry/authorization/util).
package access
