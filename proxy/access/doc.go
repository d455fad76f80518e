// Package access authenticates clients and authorizes their reads by upstream's rules.
//
// A TokenReview authenticates a bearer token. The cluster's client CA authenticates a certificate.
// A SubjectAccessReview authorizes a read from the cache, with all attributes that the apiserver
// uses, including selectors. The authenticators and the impersonation filter come from
// k8s.io/apiserver. Its caches are not used: they limit only the number or age of entries and keep
// whole requests, so a client without rights could fill the memory.
//
// Outcomes are remembered (reviewcache.go), clients take turns upstream (package fair), and equal
// requests share a review (reviews.go). A failed review is an outage, not a refusal. In the last
// quarter of its TTL, the use of an outcome renews it in the background: a busy client waits once.
//
// # Bounds
//
//	what                    | belongs to | filled by     | bound        | dropped first
//	decisions               | user       | users         | 64 MiB       | largest holder's oldest
//	good tokens             | user       | token holders | 16 MiB       | largest holder's oldest
//	refused tokens          | network    | any client    | 8 MiB        | largest holder's oldest
//	access reviews upstream | user       | users         | 50, 25 each  | none, they wait
//	reviews of good tokens  | user       | token holders | 50, 25 each  | none, they wait
//	reviews of other tokens | network    | any client    | 50, 25 each  | none, they wait
//	waiting reviews of each | the same   | the same      | 32 MiB, 5 s  | refused, with 503
//
// Strangers share by [Network]. A token that was good before is reviewed as its user's, in other
// slots than strangers', so made-up tokens do not lock out the users of the same network. For that,
// the user is remembered for five minutes after the outcome has expired. Other outcomes are dropped
// at most 10 s after their TTL. If a review fails, the proxy forwards a read, and answers 503 to an
// unknown token and to a certificate that impersonates.
//
// # Strangers
//
// The bytes of a client without valid credentials cost this much processor time of one core:
//
//	step            | cost                      | bound
//	accept          | 10 µs; 1.5 ms beyond the  | an address or /64 with more strangers than others
//	                | limit, of 18,000 networks | makes room
//	TLS, first 401  | 0.7 ms                    | handshake: 40 KiB, 10 s; above 4 KiB it is held
//	TLS, later      |                           | 4 KiB that bring no data
//	TLS key update  | 13 µs for 27 bytes        | 16 in a row; 128 KiB of unread answers
//	HTTP/1.1 read   | 0.1 ms for a byte alone   | 64 KiB; 8 bytes of empty lines; 30 s
//	HTTP/1.1 head   | 0.7 ms for 64 KiB; 13 ms  | parsed once; 401 closes
//	                | for 8,700 lines; 3 ms for | a path of 8 KiB
//	                | a path                    |
//	HTTP/1.1 body   | 8 KiB are read            | counts as begun until then; 30 s; 401 closes
//	HTTP/2 frame    | an answer; 0.6 ms if all  | 16 KiB; 16 KiB of unread answers; 100 changes of
//	                | of 480 streams are woken  | all windows
//	header (HPACK)  | 3 µs; 0.1 ms for 28 bytes | 64 KiB; 100 that come to nothing
//	route           | 10 µs for 4 KiB           | 16 segments are split
//	query           | 40 µs for 4 KiB           | pretty alone is read
//	audit event     | 30 µs                     | 512 bytes of each text; selectors are not parsed
//	Accept          | 20 µs                     | 512 bytes, 12 clauses; else JSON
//	token           | a hash, a review          | 25 reviews of a network; refusals last 10 s
//	certificate     | 34 ms for 10 of P-521     | a connection; 10 certificates
//	CORS preflight  | one request upstream      | 16, 8 of a network; no labels; ends the connection
//	401             | 10 µs, 35 allocations;    | the last stream of its connection
//	                | 13 KiB until it is read   |
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
// # Observed in kube-apiserver
//
// A TokenReview of an unknown token has an error in its status. This counts as a refusal. Otherwise
// each use of an expired token would cause a review. For an impersonated service account without
// groups, the apiserver adds the account's groups. Constrained impersonation (1.36) is tried before
// the verb impersonate. Both result in the same user, except for nodes. Kube-apiserver parses a
// rawSelector like a request's selectors (k8s.io/kubernetes/pkg/registry/authorization/util).
package access
