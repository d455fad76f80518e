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

// Authentication says how clients are authenticated. Its fields are named like the kubelet's.
type Authentication struct {
	// Mode is delegated or none. With delegated, the apiserver reviews bearer tokens, and the proxy
	// accepts client certificates of the cluster's CA. With none, requests act as the proxy's own
	// identity. none is allowed only on loopback addresses and Unix sockets, and is the default
	// there. Elsewhere the default is delegated.
	Mode AuthenticationMode `json:"mode,omitempty"`
	// Anonymous says whether clients without credentials are served, as system:anonymous.
	Anonymous Anonymous `json:"anonymous,omitzero"`
	// X509 configures client certificates.
	X509 X509 `json:"x509,omitzero"`
	// Webhook configures reviews of bearer tokens.
	Webhook AuthenticationWebhook `json:"webhook,omitzero"`
}

// AuthenticationMode says how clients are authenticated.
type AuthenticationMode string

// The values of [AuthenticationMode].
const (
	Delegated        AuthenticationMode = "delegated"
	NoAuthentication AuthenticationMode = "none"
)

// Anonymous configures clients without credentials.
type Anonymous struct {
	// Enabled serves clients without credentials with the rights of system:anonymous. Otherwise
	// they get 401.
	Enabled bool `json:"enabled,omitempty"`
}

// X509 configures client certificates.
type X509 struct {
	// ClientCAFile is the path of a PEM file with the CAs of accepted client certificates. It is
	// read again when it changes. The default is the apiserver's own client CAs, from the ConfigMap
	// extension-apiserver-authentication in kube-system.
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// AuthenticationWebhook configures reviews of bearer tokens.
type AuthenticationWebhook struct {
	// CacheTTL is the time for which the result of a TokenReview is trusted. A refused token is
	// reviewed again after at most 10s.
	CacheTTL *metav1.Duration `json:"cacheTTL,omitempty"`
}

// Authorization says how long the apiserver's decisions about access are trusted.
type Authorization struct {
	// Webhook configures SubjectAccessReviews.
	Webhook AuthorizationWebhook `json:"webhook,omitzero"`
	// WatchRecheckInterval is the time after which an open watch is authenticated and authorized
	// again. The watch ends if the client has lost access. 0 disables this check, which
	// kube-apiserver does not have; other values must be at least 1s.
	WatchRecheckInterval *metav1.Duration `json:"watchRecheckInterval,omitempty"`
}

// AuthorizationWebhook configures SubjectAccessReviews.
type AuthorizationWebhook struct {
	// CacheAuthorizedTTL is the time for which granted access is trusted.
	CacheAuthorizedTTL *metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`
	// CacheUnauthorizedTTL is the time for which denied access is trusted.
	CacheUnauthorizedTTL *metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"`
}

// Limits bound what clients can use. A request beyond a limit gets a Status, with 429 and
// Retry-After if a retry helps. Other clients are not affected.
type Limits struct {
	// MaxHeaderBytes bounds the request line and headers of a request. A larger request gets 431.
	// From 4Ki to 1Mi.
	MaxHeaderBytes *resource.Quantity `json:"maxHeaderBytes,omitempty"`
	// MaxURIBytes bounds the path and query. A longer URI gets 414. kubectl exec sends the whole
	// command in the query. From 1Ki to 1Mi.
	MaxURIBytes *resource.Quantity `json:"maxURIBytes,omitempty"`
	// MaxRequestBodyBytes bounds the body of a forwarded request, except through the proxy
	// subresource. A larger body gets 413. The default is kube-apiserver's own limit. From 1Ki to
	// 1Gi.
	MaxRequestBodyBytes *resource.Quantity `json:"maxRequestBodyBytes,omitempty"`
	// ReadTimeout is the time in which a client must send the headers of a request, and the longest
	// pause within its body. After that the connection is closed. At least 1s.
	ReadTimeout *metav1.Duration `json:"readTimeout,omitempty"`
	// WriteTimeout is the time for which a client may leave a part of an answer unread, unless the
	// answer is a stream. After that the connection is closed. At least 1s.
	WriteTimeout *metav1.Duration `json:"writeTimeout,omitempty"`
	// IdleTimeout is the time for which a connection is kept open between requests. At least 1s.
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// MaxConnections bounds the connections of all clients.
	MaxConnections *int `json:"maxConnections,omitempty"`
	// MaxConnectionsPerIdentity bounds the connections of one user. Without authentication, all
	// clients count as one user.
	MaxConnectionsPerIdentity *int `json:"maxConnectionsPerIdentity,omitempty"`
	// MaxWatchesPerIdentity bounds the long-running requests of one user: watches, and forwarded
	// logs, exec, attach and port-forward. Without authentication, all clients count as one user.
	MaxWatchesPerIdentity *int `json:"maxWatchesPerIdentity,omitempty"`
	// MaxForwardsInFlight bounds the forwarded requests in flight upstream. With authentication,
	// one user has at most half of them. Further requests wait for their user's turn until their
	// client gives up, for at most a minute. They get 429 only if the memory for waiting requests
	// is full. Watches, logs, exec and the like do not count.
	MaxForwardsInFlight *int `json:"maxForwardsInFlight,omitempty"`
}

// unixScheme is the prefix of a Unix socket's address.
const unixScheme = "unix://"

// UnixSocket returns the path of the Unix socket if the address names one.
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

// validateAccess checks that the address, TLS and authentication fit together.
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
	default:
		errs = append(errs, field.NotSupported(path.Child("mode"), a.Mode, []AuthenticationMode{Delegated, NoAuthentication}))
	}
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
	for _, d := range []struct {
		name  string
		value *metav1.Duration
	}{
		{"readTimeout", l.ReadTimeout}, {"writeTimeout", l.WriteTimeout}, {"idleTimeout", l.IdleTimeout},
	} {
		errs = append(errs, validateDuration(path.Child(d.name), d.value, time.Second)...)
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"maxConnections", *l.MaxConnections},
		{"maxConnectionsPerIdentity", *l.MaxConnectionsPerIdentity},
		{"maxWatchesPerIdentity", *l.MaxWatchesPerIdentity},
		{"maxForwardsInFlight", *l.MaxForwardsInFlight},
	} {
		if n.value < 1 {
			errs = append(errs, field.Invalid(path.Child(n.name), n.value, "must be at least 1"))
		}
	}
	return errs
}
