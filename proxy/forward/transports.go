package forward

import (
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// transports connect to one upstream: plain over HTTP/2 if upstream supports it, http1 over
// HTTP/1.1, and uploads like plain, for requests with a body and without a time limit.
type transports struct{ plain, http1, uploads http.RoundTripper }

// Adaptation returns a changed copy of a client configuration.
type Adaptation func(*rest.Config) *rest.Config

// withoutCredentials returns the configuration for requests with clients' own credentials.
func withoutCredentials(config *rest.Config) *rest.Config {
	return unshared(rest.AnonymousClientConfig(config))
}

// unshared returns a configuration for connections of its own. Client-go shares connections among
// equal configurations, but not among those with a dialer.
func unshared(config *rest.Config) *rest.Config {
	const timeout, keepAlive = 30 * time.Second, 30 * time.Second // as in client-go
	config = rest.CopyConfig(config)
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: timeout, KeepAlive: keepAlive}).DialContext
	}
	return config
}

func newTransports(
	identity Adaptation, transport func(Adaptation) (http.RoundTripper, error),
) (t transports, err error) {
	asIs := func(config *rest.Config) *rest.Config {
		config = identity(config)
		config.DisableCompression = true // bodies pass unchanged
		return config
	}
	if t.plain, err = transport(asIs); err != nil {
		return t, err
	}
	t.uploads, err = transport(
		func(config *rest.Config) *rest.Config { return unshared(asIs(config)) },
	)
	if err != nil {
		return t, err
	}
	t.http1, err = transport(func(config *rest.Config) *rest.Config {
		config = asIs(config)
		config.NextProtos = []string{"http/1.1"}
		return config
	})
	return t, err
}

func asProxy(req *exchange.Request) bool {
	return req.Identity.ActsAsAnother() || req.Identity == nil && !req.Identified()
}

// way selects the transport for a request. whole says that the whole body has been read. If ok is
// false, headers cannot carry the user whom the proxy impersonates.
func (f *Forwarder) way(
	req *exchange.Request, t *Attempt, whole bool,
) (way http.RoundTripper, ok bool) {
	ts, known := &f.strangers, false
	switch {
	case asProxy(req):
		ts, known = &f.own, true
	case req.Identity != nil && req.Identity.Token:
		ts, known = &f.users, true
	}
	way = ts.plain
	switch {
	case t.Lasts && req.Body != nil:
		way = ts.uploads
	// A body that cannot be sent again must not share a connection that upstream may end. With very
	// long headers, a pod can end the connection of its response.
	case req.WantsUpgrade(), req.Body != nil && !whole, t.Relayed, !known && !t.Lasts:
		way = ts.http1
	}
	if req.Identity.ActsAsAnother() {
		return access.Impersonating(req.Identity.ActsAs, way)
	}
	return way, true
}
