package exchange

import (
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// Identity is who a request acts as. Without authentication it is nil: the request
// acts as the proxy.
type Identity struct {
	*access.Caller
	// actsAs is whom the proxy has to impersonate upstream: the bearer of a
	// certificate, or whom that one impersonates. It is nil for others, whose own
	// credentials are forwarded.
	ActsAs user.Info
}

// name is the user that limits are counted by.
func (i *Identity) name() string {
	if i == nil {
		return ""
	}
	return i.User.GetName()
}

// Key is the same for requests with the same credentials only.
func (i *Identity) Key() string {
	if i == nil {
		return ""
	}
	return i.Caller.Key()
}

// ActsAsAnother tells whether the proxy has to impersonate somebody.
func (i *Identity) ActsAsAnother() bool { return i != nil && i.ActsAs != nil }
