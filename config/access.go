package config

import (
	"net"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Authentication configures the authentication of clients. Its fields have the same names as in the
// kubelet's configuration.
type Authentication struct {
	// Mode is delegated or none. With delegated, the apiserver reviews bearer tokens, and the proxy
	// accepts client certificates of the cluster's CA. With none, requests use the proxy's own
	// identity (with tls.sidecar, only those with the pod's token). none is allowed only on
	// loopback addresses, where it is the default. Elsewhere the default is delegated.
	Mode AuthenticationMode `json:"mode,omitempty" oneof:"delegated none"`
	// Anonymous configures clients without credentials.
	Anonymous Anonymous `json:"anonymous,omitzero"`
	// X509 configures client certificates.
	X509 X509 `json:"x509,omitzero"`
	// Webhook configures reviews of bearer tokens.
	Webhook AuthenticationWebhook `json:"webhook,omitzero"`
}

// AuthenticationMode is the way in which clients are authenticated.
type AuthenticationMode string

// The values of [AuthenticationMode].
const (
	Delegated        AuthenticationMode = "delegated"
	NoAuthentication AuthenticationMode = "none"
)

// Anonymous configures clients without credentials.
type Anonymous struct {
	// Enabled forwards the requests of clients without credentials, so that the apiserver decides
	// what system:anonymous may do. Otherwise they get 401.
	Enabled bool `json:"enabled,omitempty"`
}

// X509 configures client certificates.
type X509 struct {
	// ClientCAFile is the path of a PEM file with the CAs of accepted client certificates. When the
	// file changes, the proxy reads it again. The default is the apiserver's own client CAs, from
	// the ConfigMap extension-apiserver-authentication in kube-system.
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// AuthenticationWebhook configures reviews of bearer tokens.
type AuthenticationWebhook struct {
	// CacheTTL is how long the result of a TokenReview is trusted. A refused token is reviewed
	// again after at most 10s.
	CacheTTL *metav1.Duration `json:"cacheTTL,omitempty" default:"1m" min:"0s"`
}

// Authorization configures how long the apiserver's access decisions are trusted.
type Authorization struct {
	// Webhook configures SubjectAccessReviews.
	Webhook AuthorizationWebhook `json:"webhook,omitzero"`
	// WatchRecheckInterval is the longest time after which an open watch is authenticated and
	// authorized again. If a client has lost access, its watch ends. 0 disables this check, which
	// kube-apiserver does not have; other values must be at least 1s.
	WatchRecheckInterval *metav1.Duration `json:"watchRecheckInterval,omitempty" default:"5m" min:"1s" zero:"ok" reload:"yes"`
}

// AuthorizationWebhook configures SubjectAccessReviews.
type AuthorizationWebhook struct {
	// CacheAuthorizedTTL is how long granted access is trusted.
	CacheAuthorizedTTL *metav1.Duration `json:"cacheAuthorizedTTL,omitempty" default:"1m" min:"0s"`
	// CacheUnauthorizedTTL is how long denied access is trusted.
	CacheUnauthorizedTTL *metav1.Duration `json:"cacheUnauthorizedTTL,omitempty" default:"10s" min:"0s"`
}

// AdminAuthentication configures access to the admin address. Requests on a loopback address are
// always served, for example through kubectl port-forward. The exception is a request with a header
// such as X-Forwarded-For, which shows that a proxy relays it.
type AdminAuthentication struct {
	// Mode is delegated or none. With delegated, the apiserver reviews all requests, except those
	// on a loopback address. A reviewed request needs TLS, a bearer token or a client certificate,
	// and the right to the path, by the nonResourceURLs of a ClusterRole. Without tls, and with
	// tls.sidecar, such requests are refused. With none, all requests are served, but profiles only
	// on a loopback address. The default is none if AdminListen is a loopback address, else
	// delegated.
	Mode AuthenticationMode `json:"mode,omitempty" oneof:"delegated none"`
	// AlwaysAllowPaths are paths that need no credentials. Possible paths are /livez, /readyz,
	// /metrics, /status and /, which is the status page. The default is /livez and /readyz, for the
	// kubelet.
	AlwaysAllowPaths []string `json:"alwaysAllowPaths,omitempty" oneof:"/livez /readyz /metrics /status /"`
	// RestrictLoopback serves requests on a loopback address only on AlwaysAllowPaths. It is for
	// pods with hostNetwork, where all processes of the node can send such requests.
	RestrictLoopback bool `json:"restrictLoopback,omitempty"`
}

// AdminReviews reports whether the admin address needs the apiserver's reviews.
func (c *ProxyConfiguration) AdminReviews() bool {
	return c.AdminAuthentication.Mode == Delegated && c.AdminTLS()
}

// AdminTLS reports whether the admin address uses TLS: not on loopback, and not of a sidecar, whose
// certificate is for clients in its pod, and whose service account may not request reviews.
func (c *ProxyConfiguration) AdminTLS() bool {
	return c.TLS != nil && c.TLS.Sidecar == nil && !private(c.AdminListen)
}

// private reports whether other machines cannot reach an address.
func private(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
