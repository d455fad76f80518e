package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/watchproxy/watchproxy/config"
)

// restConfig finds the upstream apiserver: the given kubeconfig, else the pod's
// service account, else the usual kubeconfig. One that leads to the proxy's own
// address is read as it was before 'watchproxy kubeconfig' made it do so.
func restConfig(u config.Upstream, listen string) (*rest.Config, error) {
	if u.Kubeconfig == "" && u.Context == "" {
		rc, err := rest.InClusterConfig()
		if err == nil {
			return rc, nil
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("upstream: service account of the pod: %w", err)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = u.Kubeconfig
	all, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("upstream.kubeconfig: %w", err)
	}
	for name, c := range all.Clusters {
		if !isSelf(c.Server, listen) {
			continue
		}
		if err := revert(c, true); err != nil && !errors.Is(err, errNotRedirected) {
			return nil, fmt.Errorf("upstream.kubeconfig: cluster %q: %w", name, err)
		}
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: u.Context}
	rc, err := clientcmd.NewNonInteractiveClientConfig(*all, u.Context, overrides, rules).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("upstream.kubeconfig: %w", err)
	}
	if isSelf(rc.Host, listen) {
		return nil, fmt.Errorf("upstream.kubeconfig: %s is the address that this proxy listens on", rc.Host)
	}
	return rc, nil
}

// isSelf tells whether a server's URL leads to the address that the proxy is about to listen on.
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

// address is nil for other names than localhost.
func address(host string) net.IP {
	if host == "localhost" {
		return net.IPv4(127, 0, 0, 1)
	}
	return net.ParseIP(host)
}

const reachTimeout = 10 * time.Second

// reach asks upstream for its version, so that a wrong address or credential is
// told at start and not by every client.
func reach(ctx context.Context, rc *rest.Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("no answer within %s", reachTimeout))
	defer cancel()
	base, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return fmt.Errorf("upstream address %q: %w", rc.Host, err)
	}
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return fmt.Errorf("upstream transport: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), nil)
	if err != nil {
		return fmt.Errorf("upstream address %q: %w", rc.Host, err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("upstream %s cannot be reached: %w", rc.Host, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusForbidden:
		return nil
	case http.StatusUnauthorized:
		return fmt.Errorf("upstream %s does not accept the credentials (401)", rc.Host)
	}
	return fmt.Errorf("upstream %s answers %s to /version", rc.Host, resp.Status)
}
