// Package access authenticates clients and authorizes their reads by upstream's rules.
//
// A TokenReview authenticates a bearer token. The cluster's client CA authenticates a certificate.
// A SubjectAccessReview authorizes a read from the cache, with all attributes that the apiserver
// uses, including selectors. The authenticators and the impersonation filter come from
// k8s.io/apiserver. Its caches are not used: they limit only the number or age of entries and keep
// whole requests, so a client without rights could fill the memory.
//
// The package remembers outcomes (reviewcache.go). Clients take turns upstream (package fair), and
// equal requests share a review (reviews.go). A failed review is an outage, not a refusal: the
// proxy forwards a read, and answers 503 to an unknown token and to a certificate that
// impersonates. In the last quarter of its TTL, the use of an outcome renews it in the background.
//
// Users share memory and slots by name, and strangers by [Network]. BOUNDS.md of cmd/watchproxy has
// all bounds, also those of the work that a client causes before it is known. A token that was good
// before is reviewed as its user's, in other slots than strangers', so made-up tokens do not lock
// out the users of the same network. For that, the user is remembered for five minutes after the
// outcome has expired.
//
// Over HTTP/2, the first refusal of a connection without a user ends it, as in kube-apiserver, but
// only the hundredth 429 or 503 does: a final GOAWAY names the streams that have begun, and these
// are answered. A connection that has served a user gets two GOAWAYs with a PING between them, so
// no stream on its way is lost: the user's token may have expired, or a balancer may share the
// connection.
//
// A request with a token is forwarded with it, and upstream checks its Impersonate headers. For a
// certificate, the proxy impersonates its user, refuses values that headers would change, and runs
// the apiserver's own filter on Impersonate headers. A read from the cache acts as the impersonated
// user if reviews allow each part ([Access.EffectiveUser]). In doubt it is forwarded.
//
// A TokenReview of an unknown token has an error in its status. This counts as a refusal. Otherwise
// each use of an expired token would cause a review. For an impersonated service account without
// groups, the apiserver adds the account's groups. Constrained impersonation (1.36) is tried before
// the verb impersonate. Both result in the same user, except for nodes. Kube-apiserver parses a
// rawSelector like a request's selectors (k8s.io/kubernetes/pkg/registry/authorization/util).
package access
