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
	// Certificate tells that the user has proved it by one. Upstream has not seen it.
	Certificate bool
	// Token tells that the user has proved it by a bearer token. No browser adds one by itself.
	Token bool
	// key tells credentials apart that upstream could tell apart. It does not reveal
	// them.
	key string
}

// Key is the same for requests with the same credentials only.
func (c *Caller) Key() string { return c.key }

func certificateCaller(u user.Info, proof *x509.Certificate) *Caller {
	return &Caller{User: u, Certificate: true, key: digest("certificate", string(proof.Raw))}
}

// tokenCaller is known by all headers that could hold a token: which of them was
// taken is not told.
func tokenCaller(u user.Info, header http.Header) *Caller {
	return &Caller{User: u, Token: true, key: credentials("token", header)}
}

// anonymousCaller is known by them, too: they hold nothing that is understood here, but
// upstream may understand more.
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
		_, _ = h.Write([]byte(p)) // to memory
		_, _ = h.Write([]byte{0})
	}
	return string(h.Sum(nil))
}

// Impersonating is a way upstream on which requests act as a user. They must not
// bring Impersonate headers or credentials of their own. It is false for a user that
// would not arrive as who it is.
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
