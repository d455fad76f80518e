package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// apiserver is upstream: one or several servers of the same cluster.
type apiserver struct {
	configs   []*rest.Config // one per server
	base      *url.URL       // of the first
	servers   *client.Servers
	namespace string            // of the pod's service account, or "" without one
	own       http.RoundTripper // adds the proxy's credentials
	window    int               // of HTTP/2 streams (see streamWindow)
	metrics   *client.Metrics
}

// connect sends upstream a request, so that a wrong address or credential makes the start fail.
func connect(
	ctx context.Context, c *config.ProxyConfiguration, window int, metrics *upstream.Metrics,
	log *zap.Logger,
) (*apiserver, error) {
	configs, err := restConfigs(c.Upstream, c.Listen)
	if err != nil {
		return nil, err
	}
	a := &apiserver{configs: configs, window: window, metrics: metrics.Client}
	a.namespace = namespaceOf(configs[0])
	several := make([]client.Server, len(configs))
	own := make([]http.RoundTripper, len(configs))
	for i, rc := range configs {
		base, _, err := rest.DefaultServerUrlFor(rc)
		if err != nil {
			return nil, fmt.Errorf("upstream address %q: %w", rc.Host, err)
		}
		if i == 0 {
			a.base = base
		}
		if strings.TrimSuffix(base.Path, "/") != strings.TrimSuffix(a.base.Path, "/") {
			return nil, fmt.Errorf("upstream servers %s and %s differ in their paths, "+
				"which forwarded requests cannot", a.base, base)
		}
		several[i].Base = base
		if len(configs) > 1 {
			plain := &net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}
			dialer := connrotation.NewDialer(plain.DialContext)
			rc.Dial, several[i].Connections = dialer.DialContext, dialer
		}
		transport, err := transportFor(rc, window, metrics.Client)
		if err != nil {
			return nil, err
		}
		own[i] = forward.Own(transport)
		several[i].Transport = own[i]
	}
	if len(configs) == 1 {
		if err := reach(ctx, several[0]); err != nil {
			return nil, err
		}
	}
	a.servers, err = client.NewServers(ctx, several, metrics.Servers, metrics.Client, log)
	if err != nil {
		return nil, fmt.Errorf("none of the upstream servers can be asked: %w", err)
	}
	a.own = a.servers.Transport(own)
	return a, nil
}

// dialTimeout is client-go's limit for opening a connection, and its interval of keep-alives.
const dialTimeout = 30 * time.Second

// transport returns a transport that sends each request to the current server.
func (a *apiserver) transport(adapt forward.Adaptation) (http.RoundTripper, error) {
	ways := make([]http.RoundTripper, len(a.configs))
	for i, rc := range a.configs {
		var err error
		if ways[i], err = transportFor(adapt(rc), a.window, a.metrics); err != nil {
			return nil, err
		}
	}
	return a.servers.Transport(ways), nil
}

func (a *apiserver) config() *rest.Config {
	return &rest.Config{Host: a.base.String(), Transport: a.own}
}

// forwarding returns the address, and the impersonated identity of the configurations, if any.
func (a *apiserver) forwarding() *rest.Config {
	for _, rc := range a.configs {
		if rc.Impersonate.UserName != "" {
			rc = rest.CopyConfig(rc)
			rc.Host = a.configs[0].Host
			return rc
		}
	}
	return a.configs[0]
}

func (a *apiserver) client(metrics *upstream.Metrics) *client.Client {
	return a.servers.Client(a.own, metrics.Client)
}

func (a *apiserver) host() string {
	if len(a.configs) == 1 {
		return a.configs[0].Host
	}
	return a.servers.Current()
}

func namespaceOf(rc *rest.Config) string {
	if rc.BearerTokenFile == "" {
		return ""
	}
	namespace, err := os.ReadFile(filepath.Join(filepath.Dir(rc.BearerTokenFile), "namespace"))
	if err != nil {
		return "" // no pod's
	}
	return strings.TrimSpace(string(namespace))
}

// restConfigs returns the configurations of the servers. The servers are the named contexts, or the
// named addresses with the credentials of one context, or the address of that context.
func restConfigs(u config.Upstream, listen string) ([]*rest.Config, error) {
	if len(u.Contexts) > 0 {
		var configs []*rest.Config
		for i, name := range u.Contexts {
			rc, err := restConfig(u.Kubeconfig, name, listen)
			if err != nil {
				return nil, fmt.Errorf("upstream.contexts[%d]: %w", i, err)
			}
			configs = append(configs, rc)
		}
		return configs, nil
	}
	rc, err := restConfig(u.Kubeconfig, u.Context, listen)
	if err != nil {
		return nil, err
	}
	if u.CAFile != "" {
		rc.CAFile, rc.CAData, rc.Insecure = u.CAFile, nil, false
		if _, err := rest.TLSConfigFor(rc); err != nil {
			return nil, fmt.Errorf("upstream.caFile: %w", err)
		}
	}
	if len(u.Servers) == 0 {
		return []*rest.Config{rc}, nil
	}
	configs := make([]*rest.Config, len(u.Servers))
	for i, address := range u.Servers {
		if isSelf(address, listen) {
			return nil, fmt.Errorf("upstream.servers[%d]: %s is the address that this proxy "+
				"listens on", i, address)
		}
		configs[i] = rest.CopyConfig(rc)
		configs[i].Host = address
	}
	return configs, nil
}

// restConfig takes the named kubeconfig, else the pod's service account, else the usual kubeconfig.
func restConfig(file, name, listen string) (*rest.Config, error) {
	if file == "" && name == "" {
		rc, err := rest.InClusterConfig()
		if err == nil {
			if isSelf(rc.Host, listen) {
				return nil, fmt.Errorf("upstream: %s is the address that this proxy listens on; "+
					"set KUBERNETES_SERVICE_HOST only in the containers of clients", rc.Host)
			}
			return rc, nil
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("upstream: service account of the pod: %w; "+
				"mount its token (automountServiceAccountToken), or name a kubeconfig by "+
				"--kubeconfig", err)
		}
	}
	rc, err := clientConfig(file, name)
	if err != nil && file == "" && name == "" {
		return nil, fmt.Errorf("upstream: no service account of a pod, "+
			"and no usable kubeconfig: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("upstream.kubeconfig: %w", err)
	}
	if isSelf(rc.Host, listen) {
		return nil, fmt.Errorf("upstream.kubeconfig: %s is the address that this proxy listens "+
			"on; name the context of the apiserver with --context", rc.Host)
	}
	return rc, nil
}

// isSelf reports whether a server's URL is the address that the proxy is about to listen on.
func isSelf(server, listen string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || u.Port() != port {
		return false
	}
	own, of := address(host), address(u.Hostname())
	if host == "" || own.IsUnspecified() {
		return of.IsLoopback()
	}
	return own != nil && own.Equal(of)
}

// address returns the IP address of host. For a name other than localhost, it returns nil.
func address(host string) net.IP {
	if host == "localhost" {
		return net.IPv4(127, 0, 0, 1)
	}
	return net.ParseIP(host)
}

const reachTimeout = 10 * time.Second

func reach(ctx context.Context, s client.Server) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout,
		fmt.Errorf("no answer within %s", reachTimeout))
	defer cancel()
	address := s.Base.JoinPath("version").String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("upstream address %q: %w", s.Base, err)
	}
	resp, err := s.Transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("upstream %s cannot be reached: %w", s.Base, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusForbidden:
		return nil
	case http.StatusUnauthorized:
		return fmt.Errorf("upstream %s does not accept the credentials (401)", s.Base)
	}
	return fmt.Errorf("upstream %s answers %s to /version", s.Base, resp.Status)
}
