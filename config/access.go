package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Authentication configures the authentication of clients. Its fields have the same names as in the
// kubelet's configuration.
type Authentication struct {
	// Mode is delegated or none. With delegated, the apiserver reviews bearer tokens, and the proxy
	// accepts client certificates of the cluster's CA. With none, requests use the proxy's own
	// identity (with tls.sidecar, only those with the pod's token). none is allowed only on loopback addresses and Unix sockets, where it is the
	// default. Elsewhere the default is delegated.
	Mode AuthenticationMode `json:"mode,omitempty"`
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
	// Enabled forwards the requests of clients without credentials, so that the apiserver decides what
	// system:anonymous may do. Otherwise they get 401.
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
	CacheTTL *metav1.Duration `json:"cacheTTL,omitempty"`
}

// Authorization configures how long the apiserver's access decisions are trusted.
type Authorization struct {
	// Webhook configures SubjectAccessReviews.
	Webhook AuthorizationWebhook `json:"webhook,omitzero"`
	// WatchRecheckInterval is the interval at which open watches are authenticated and authorized
	// again. If a client has lost access, its watch ends. 0 disables this check, which
	// kube-apiserver does not have; other values must be at least 1s.
	WatchRecheckInterval *metav1.Duration `json:"watchRecheckInterval,omitempty"`
}

// AuthorizationWebhook configures SubjectAccessReviews.
type AuthorizationWebhook struct {
	// CacheAuthorizedTTL is how long granted access is trusted.
	CacheAuthorizedTTL *metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`
	// CacheUnauthorizedTTL is how long denied access is trusted.
	CacheUnauthorizedTTL *metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"`
}

// Limits are the limits for clients. A request beyond a limit gets a Status. If a retry helps, the
// code is 429, with Retry-After. Other clients are not affected.
type Limits struct {
	// MaxHeaderBytes limits the request line and headers of a request. A larger request gets 431.
	// The value must be from 4Ki to 1Mi.
	MaxHeaderBytes *resource.Quantity `json:"maxHeaderBytes,omitempty"`
	// MaxURIBytes limits the path and query of a request. A longer URI gets 414. kubectl exec sends
	// the whole command in the query. The value must be from 1Ki to 1Mi.
	MaxURIBytes *resource.Quantity `json:"maxURIBytes,omitempty"`
	// MaxRequestBodyBytes limits the body of a forwarded request, except for the proxy subresource.
	// A larger body gets 413. The default is kube-apiserver's own limit. The value must be from 1Ki
	// to 1Gi.
	MaxRequestBodyBytes *resource.Quantity `json:"maxRequestBodyBytes,omitempty"`
	// ReadTimeout limits the time until a client has sent the headers of a request, and each pause
	// within its body. After that the connection is closed. A body must also arrive within a minute
	// and the time that it takes at 16 KiB a second. The value must be at least 1s.
	ReadTimeout *metav1.Duration `json:"readTimeout,omitempty"`
	// WriteTimeout is how long a client may leave a part of a response unread, unless the response
	// is a stream. After that the connection is closed. The value must be at least 1s.
	WriteTimeout *metav1.Duration `json:"writeTimeout,omitempty"`
	// IdleTimeout is how long a connection stays open between requests. The value must be at least
	// 1s.
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// MaxConnections limits the connections of all clients together. Half of memoryBudget, at 28 KiB for
	// each, and the limit of open files limit them, too.
	MaxConnections *int `json:"maxConnections,omitempty"`
	// MaxConnectionsPerIdentity limits the connections of one user, who has at most half of those for
	// which memoryBudget has room. Without authentication, all clients count as one user.
	MaxConnectionsPerIdentity *int `json:"maxConnectionsPerIdentity,omitempty"`
	// MaxWatchesPerIdentity limits the long-running requests of one user: watches, forwarded logs,
	// and upgraded requests as exec, attach and port-forward. Without authentication, all clients
	// count as one user.
	MaxWatchesPerIdentity *int `json:"maxWatchesPerIdentity,omitempty"`
	// MaxForwardsInFlight limits the forwarded requests in flight upstream. With authentication, a
	// user may have no more than stay free: one user has half of them, two have a third each. Further
	// requests wait for their user's turn, for at most a minute or until the client gives up. They get
	// 429 only if the memory for waiting requests is full. Watches, logs, exec and similar requests do
	// not count.
	MaxForwardsInFlight *int `json:"maxForwardsInFlight,omitempty"`
}

// AdminAuthentication configures access to the admin address. Requests on a loopback address are
// always served, for example through kubectl port-forward. The exception is a request with a header
// such as X-Forwarded-For, which shows that a proxy relays it.
type AdminAuthentication struct {
	// Mode is delegated or none. With delegated, the apiserver reviews all requests, except those
	// on a loopback address. A reviewed request needs TLS, a bearer token or a client certificate,
	// and the right to the path, by the nonResourceURLs of a ClusterRole. Without tls, and with
	// tls.sidecar, such requests are refused. With none, all requests are served, but only requests on a loopback
	// address can change the log level. The default is none if AdminListen is a loopback address,
	// else delegated.
	Mode AuthenticationMode `json:"mode,omitempty"`
	// AlwaysAllowPaths are paths that need no credentials. Possible paths are /livez, /readyz,
	// /metrics, /status and /, which is the status page. The default is /livez and /readyz, for the
	// kubelet.
	AlwaysAllowPaths []string `json:"alwaysAllowPaths,omitempty"`
	// RestrictLoopback serves requests on a loopback address only on AlwaysAllowPaths. It is for
	// pods with hostNetwork, where all processes of the node can send such requests.
	RestrictLoopback bool `json:"restrictLoopback,omitempty"`
}

// adminPaths are the possible values of AlwaysAllowPaths.
var adminPaths = []string{"/livez", "/readyz", "/metrics", "/status", "/"}

func (a *AdminAuthentication) validate(path *field.Path) (errs field.ErrorList) {
	errs = append(errs, validateOneOf(path.Child("mode"), a.Mode, Delegated, NoAuthentication)...)
	for i, open := range a.AlwaysAllowPaths {
		errs = append(errs, validateOneOf(path.Child("alwaysAllowPaths").Index(i), open, adminPaths...)...)
	}
	return errs
}

// AdminReviews reports whether the admin address needs the apiserver's reviews.
func (c *ProxyConfiguration) AdminReviews() bool {
	return c.AdminAuthentication.Mode == Delegated && c.AdminTLS()
}

// AdminTLS reports whether the admin address uses TLS. A loopback address does not. Neither does a
// sidecar, whose certificate is for clients in its pod, and whose service account may not request
// reviews.
func (c *ProxyConfiguration) AdminTLS() bool {
	return c.TLS != nil && c.TLS.Sidecar == nil && !private(c.AdminListen)
}

// unixScheme is the prefix of a Unix socket's address.
const unixScheme = "unix://"

// UnixSocket returns the path of the Unix socket in an address. ok is false for other addresses.
func UnixSocket(address string) (path string, ok bool) {
	return strings.CutPrefix(address, unixScheme)
}

// private reports whether other machines cannot reach an address.
func private(address string) bool {
	if _, ok := UnixSocket(address); ok {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func validateListen(path *field.Path, address string) field.ErrorList {
	socket, ok := UnixSocket(address)
	switch {
	case !ok:
		return validateAddress(path, address)
	case !filepath.IsAbs(socket):
		return field.ErrorList{field.Invalid(path, address, "must name an absolute path: unix:///run/watchproxy.sock")}
	case len(socket) > socketPathMax:
		return field.ErrorList{field.TooLong(path, address, socketPathMax+len(unixScheme))}
	}
	return nil
}

// socketPathMax is the maximum length of a Unix socket's path on Linux, in bytes.
const socketPathMax = 107

// validateAccess checks that the address, TLS and authentication are compatible.
func (c *ProxyConfiguration) validateAccess() (errs field.ErrorList) {
	path := field.NewPath("authentication")
	a := &c.Authentication
	_, socket := UnixSocket(c.Listen)
	switch a.Mode {
	case NoAuthentication:
		if !private(c.Listen) {
			errs = append(errs, field.Invalid(path.Child("mode"), a.Mode,
				c.Listen+" can be reached from elsewhere: authenticate clients (delegated), or listen on loopback or a Unix socket"))
		}
		if a.Anonymous.Enabled {
			errs = append(errs, field.Invalid(path.Child("anonymous", "enabled"), true, "is for mode delegated"))
		}
		if a.X509.ClientCAFile != "" {
			errs = append(errs, field.Invalid(path.Child("x509", "clientCAFile"), a.X509.ClientCAFile, "is for mode delegated"))
		}
	case Delegated:
		if c.TLS == nil && !socket {
			errs = append(errs, field.Required(field.NewPath("tls"),
				fmt.Sprintf("clients of %s are authenticated, and credentials are only taken over TLS: give a certificate (certFile, privateKeyFile), "+
					"or listen on a Unix socket, or without authentication on 127.0.0.1", c.Listen)))
		}
		if c.TLS != nil && c.TLS.Sidecar != nil && !private(c.Listen) {
			errs = append(errs, field.Invalid(field.NewPath("listen"), c.Listen, "must be a loopback address if tls.sidecar is set, because its certificate is for clients in the pod"))
		}
	}
	errs = append(errs, validateOneOf(path.Child("mode"), a.Mode, Delegated, NoAuthentication)...)
	errs = append(errs, validateDuration(path.Child("webhook", "cacheTTL"), a.Webhook.CacheTTL, 0)...)
	path = field.NewPath("authorization")
	errs = append(errs, validateDuration(path.Child("webhook", "cacheAuthorizedTTL"), c.Authorization.Webhook.CacheAuthorizedTTL, 0)...)
	errs = append(errs, validateDuration(path.Child("webhook", "cacheUnauthorizedTTL"), c.Authorization.Webhook.CacheUnauthorizedTTL, 0)...)
	return append(errs, validateInterval(path.Child("watchRecheckInterval"), c.Authorization.WatchRecheckInterval)...)
}

func (l *Limits) validate(path *field.Path) (errs field.ErrorList) {
	errs = append(errs, validateSize(path.Child("maxHeaderBytes"), l.MaxHeaderBytes, 4<<10, 1<<20)...)
	errs = append(errs, validateSize(path.Child("maxURIBytes"), l.MaxURIBytes, 1<<10, 1<<20)...)
	errs = append(errs, validateSize(path.Child("maxRequestBodyBytes"), l.MaxRequestBodyBytes, 1<<10, 1<<30)...)
	errs = append(errs, validateDuration(path.Child("readTimeout"), l.ReadTimeout, time.Second)...)
	errs = append(errs, validateDuration(path.Child("writeTimeout"), l.WriteTimeout, time.Second)...)
	errs = append(errs, validateDuration(path.Child("idleTimeout"), l.IdleTimeout, time.Second)...)
	errs = append(errs, validateNumber(path.Child("maxConnections"), *l.MaxConnections, 1)...)
	errs = append(errs, validateNumber(path.Child("maxConnectionsPerIdentity"), *l.MaxConnectionsPerIdentity, 1)...)
	errs = append(errs, validateNumber(path.Child("maxWatchesPerIdentity"), *l.MaxWatchesPerIdentity, 1)...)
	return append(errs, validateNumber(path.Child("maxForwardsInFlight"), *l.MaxForwardsInFlight, 1)...)
}
