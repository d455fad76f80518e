package access

import (
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
)

// Caller is who sent a request.
type Caller struct {
	User user.Info
	// Token tells that the user has proved itself by a bearer token. No browser adds one by itself.
	Token bool
	// ActsAs is whom the proxy impersonates upstream: the owner of a certificate, or a user whom the
	// owner impersonates. It is nil for clients whose own credentials are forwarded.
	ActsAs user.Info
	// key differs for credentials that upstream could tell apart. It does not reveal them.
	key string
}

// Key is equal for equal credentials only.
func (c *Caller) Key() string {
	if c == nil {
		return ""
	}
	return c.key
}

// ActsAsAnother tells whether the proxy has to impersonate a user.
func (c *Caller) ActsAsAnother() bool { return c != nil && c.ActsAs != nil }

func certificateCaller(u user.Info, proof *x509.Certificate) *Caller {
	return &Caller{User: u, ActsAs: u, key: digest("certificate", string(proof.Raw))}
}

// tokenCaller is known by all headers that could hold a token. The authenticators do not tell which
// one they took.
func tokenCaller(u user.Info, header http.Header) *Caller {
	return &Caller{User: u, Token: true, key: credentials("token", header)}
}

// anonymousCaller is known by the same headers: upstream may understand more in them.
func anonymousCaller(u user.Info, header http.Header) *Caller {
	return &Caller{User: u, key: credentials("anonymous", header)}
}

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
		_, _ = h.Write([]byte(p)) // memory cannot fail
		_, _ = h.Write([]byte{0})
	}
	return string(h.Sum(nil))
}

// Impersonating returns a round tripper whose requests act as a user. The requests must not have
// Impersonate headers or credentials. It is false for a user whom headers cannot name.
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
		if v == "" || v != strings.TrimSpace(v) || !httpguts.ValidHeaderFieldValue(v) {
			return nil, false
		}
	}
	return transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
		UserName: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra(),
	}, way), true
}
