package access

import (
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"net/netip"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
)

// Caller is the authenticated sender of a request.
type Caller struct {
	User user.Info
	// Token is true if a bearer token authenticated the user.
	Token bool
	// ActsAs is the user that the proxy impersonates upstream: the owner of a certificate, or a
	// user that the owner impersonates. It is nil if the client's own credentials are forwarded.
	ActsAs user.Info
	// Decided is the decision on a response from the cache, for the audit log.
	Decided Decision
	// key identifies the credentials without revealing them. Credentials that upstream could
	// distinguish have different keys.
	key string
}

// Decision is upstream's decision on whether a user may send a request. The zero value means that
// no decision was requested.
type Decision struct {
	User    user.Info // the caller, or the user that the caller impersonates
	Allowed bool
	Reason  string
}

// Key returns a value that differs between different credentials.
func (c *Caller) Key() string {
	if c == nil {
		return ""
	}
	return c.key
}

// Anonymous reports whether the client has no credentials that the proxy knows. Upstream judges it.
func (c *Caller) Anonymous() bool { return c != nil && !c.Token && c.ActsAs == nil }

// ActsAsAnother reports whether the proxy must impersonate a user.
func (c *Caller) ActsAsAnother() bool { return c != nil && c.ActsAs != nil }

func certificateCaller(u user.Info, proof *x509.Certificate) *Caller {
	return &Caller{
		User:   u,
		ActsAs: u,
		key:    digest("certificate", string(proof.Raw)),
	}
}

// tokenCaller hashes all headers that could contain a token into the key, because the
// authenticators do not report the header that they used.
func tokenCaller(u user.Info, header http.Header) *Caller {
	return &Caller{
		User:  u,
		Token: true,
		key:   credentials("token", header),
	}
}

// anonymousCaller hashes the same headers into the key, because upstream may accept credentials
// that the proxy does not recognize.
func anonymousCaller(header http.Header) *Caller {
	u := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	return &Caller{User: u, key: credentials("anonymous", header)}
}

// Unknown returns the sender of a request without credentials that upstream has to answer, also if
// anonymous clients are not accepted.
func Unknown() *Caller { return anonymousCaller(nil) }

func credentials(kind string, header http.Header) string {
	all := []string{kind}
	for _, name := range []string{"Authorization", "Sec-Websocket-Protocol"} {
		all = append(append(all, name), header[name]...)
	}
	return digest(all...)
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(p)) // a hash does not fail
		_, _ = h.Write([]byte{0})
	}
	return string(h.Sum(nil))
}

// Impersonating returns a round tripper whose requests act as a user. The requests must not have
// Impersonate headers or credentials. It returns false if headers cannot carry the user.
func Impersonating(u user.Info, way http.RoundTripper) (http.RoundTripper, bool) {
	values := append([]string{u.GetName()}, u.GetGroups()...)
	if uid := u.GetUID(); uid != "" {
		values = append(values, uid)
	}
	for name, of := range u.GetExtra() {
		if name != strings.ToLower(name) {
			return nil, false
		}
		values = append(values, of...)
	}
	for _, v := range values {
		if !isHeaderValue(v) {
			return nil, false
		}
	}
	return transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
		UserName: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra(),
	}, way), true
}

// isHeaderValue reports whether a header can carry a value unchanged.
func isHeaderValue(v string) bool {
	return v != "" && v == strings.TrimSpace(v) && httpguts.ValidHeaderFieldValue(v)
}

// networkBits is the length of an IPv6 network, of which a client usually has all addresses.
const networkBits = 64

// Network returns what unknown clients share by: the IPv4 address, or the /64 of the IPv6 address,
// of a remote address with a port. Other addresses are returned unchanged.
func Network(remote string) string {
	with, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	ip := with.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, networkBits).Masked().String()
}
