package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// extensionName is the entry of a cluster's extensions in a kubeconfig that holds a redirection.
const extensionName = "watchproxy.dev"

// redirection is what the extension holds: where the cluster led before, and where it was made to lead to. If it leads
// elsewhere now, somebody has changed it since.
type redirection struct {
	From endpoint `json:"from"`
	To   endpoint `json:"to"`
}

// endpoint is the part of a cluster that tells where it is and how it is known, with the kubeconfig's own names.
type endpoint struct {
	Server                   string `json:"server"`
	TLSServerName            string `json:"tls-server-name,omitempty"`
	InsecureSkipTLSVerify    bool   `json:"insecure-skip-tls-verify,omitempty"`
	CertificateAuthority     string `json:"certificate-authority,omitempty"`
	CertificateAuthorityData []byte `json:"certificate-authority-data,omitempty"`
	ProxyURL                 string `json:"proxy-url,omitempty"`
}

func endpointOf(c *clientcmdapi.Cluster) endpoint {
	return endpoint{c.Server, c.TLSServerName, c.InsecureSkipTLSVerify, c.CertificateAuthority, c.CertificateAuthorityData, c.ProxyURL}
}

func (e endpoint) apply(c *clientcmdapi.Cluster) {
	c.Server, c.TLSServerName, c.InsecureSkipTLSVerify = e.Server, e.TLSServerName, e.InsecureSkipTLSVerify
	c.CertificateAuthority, c.CertificateAuthorityData, c.ProxyURL = e.CertificateAuthority, e.CertificateAuthorityData, e.ProxyURL
}

func (e endpoint) equal(other endpoint) bool { return reflect.DeepEqual(e, other) }

// secure tells whether clients speak TLS to the proxy's URL. An error says why they cannot speak to it at all.
func (e endpoint) secure() (bool, error) {
	u, err := url.Parse(e.Server)
	switch {
	case err != nil:
		return false, errors.Unwrap(err)
	case u.Scheme == "unix":
		return false, errors.New("kubectl and client-go cannot connect to a Unix socket; have the proxy listen on loopback (serve --listen 127.0.0.1:8001) and name http://127.0.0.1:8001")
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return false, errors.New("must begin with http:// or https:// and a host, as in http://127.0.0.1:8001")
	case u.User != nil:
		return false, errors.New("must not hold credentials; they belong to a user of the kubeconfig")
	case u.RawQuery != "" || u.Fragment != "":
		return false, errors.New("must not have a query or a fragment")
	}
	return u.Scheme == "https", nil
}

// loopback tells whether an endpoint is on the machine that its clients are on.
func (e endpoint) loopback() bool {
	u, err := url.Parse(e.Server)
	if err != nil {
		return false
	}
	return u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
}

// redirect makes a cluster lead to the proxy. What belonged to its apiserver is removed if it cannot be meant for the proxy
// as well; warnings tell what is left to think of.
func redirect(c *clientcmdapi.Cluster, to endpoint) (warnings []string, err error) {
	secure, err := to.secure()
	if err != nil {
		return nil, err
	}
	now := endpointOf(c)
	before, ok, err := redirectionOf(c)
	if err != nil {
		return nil, err
	}
	from := now
	if ok && now.equal(before.To) {
		from = before.From
	}

	switch {
	case !secure && !to.loopback():
		warnings = append(warnings, to.Server+" is neither https nor on loopback: all that the cluster answers can be read on the way")
	case secure && to.CertificateAuthorityData == nil && from.InsecureSkipTLSVerify:
		to.InsecureSkipTLSVerify = true
		warnings = append(warnings, "the cluster has insecure-skip-tls-verify, so the proxy's certificate is not verified either; name its authority with --certificate-authority")
	case secure && to.CertificateAuthorityData == nil:
		to.CertificateAuthority, to.CertificateAuthorityData = from.CertificateAuthority, from.CertificateAuthorityData
		if to.CertificateAuthority != "" || to.CertificateAuthorityData != nil {
			warnings = append(warnings, "the proxy's certificate is verified by the cluster's certificate authority; if another has signed it, name that with --certificate-authority")
		}
	}
	if from.ProxyURL != "" && !to.loopback() {
		to.ProxyURL = from.ProxyURL
		warnings = append(warnings, "the way to "+to.Server+" leads through the cluster's proxy-url as well")
	}

	after := redirection{From: from, To: to}
	if ok && reflect.DeepEqual(before, after) && now.equal(to) {
		return warnings, nil
	}
	raw, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("extension %s: %w", extensionName, err)
	}
	if c.Extensions == nil {
		c.Extensions = map[string]runtime.Object{}
	}
	c.Extensions[extensionName] = &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}
	to.apply(c)
	return warnings, nil
}

// userWarnings tells what of the users of a cluster does not work with the proxy's endpoint.
func userWarnings(c *clientcmdapi.Config, cluster string, to endpoint) (warnings []string) {
	secure, _ := to.secure() // it was asked before
	names := map[string]bool{}
	for _, at := range c.Contexts {
		if at.Cluster == cluster && c.AuthInfos[at.AuthInfo] != nil {
			names[at.AuthInfo] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		u := c.AuthInfos[name]
		what := credentials(u)
		switch {
		case !secure && what != "":
			warnings = append(warnings, fmt.Sprintf("user %q: clients do not send its %s over plain http; "+
				"requests act as the proxy's own identity. Who has to stay itself needs a proxy with TLS and --authentication=delegated", name, what))
		case secure && u.Exec != nil && u.Exec.ProvideClusterInfo:
			warnings = append(warnings, fmt.Sprintf("user %q: its exec plugin is told the proxy's address instead of the apiserver's (provideClusterInfo)", name))
		}
	}
	return warnings
}

// credentials names what a user has to show, the empty string if there is nothing.
func credentials(u *clientcmdapi.AuthInfo) string {
	switch {
	case u.ClientCertificate != "" || len(u.ClientCertificateData) > 0:
		return "client certificate"
	case u.Token != "" || u.TokenFile != "":
		return "token"
	case u.Exec != nil:
		return "exec plugin's credentials"
	case u.AuthProvider != nil:
		return "auth provider's credentials"
	case u.Username != "":
		return "password"
	}
	return ""
}

var (
	errNotRedirected = errors.New("does not lead to a proxy by 'watchproxy kubeconfig'")
	errChangedSince  = errors.New("was changed since")
)

// revert takes a redirection back. If the cluster leads elsewhere than it was made to, it has to be forced.
func revert(c *clientcmdapi.Cluster, force bool) error {
	r, ok, err := redirectionOf(c)
	if err != nil {
		return err
	}
	if !ok {
		return errNotRedirected
	}
	if now := endpointOf(c); !force && !now.equal(r.To) && !now.equal(r.From) {
		return fmt.Errorf("%w: it leads to %s, or differs in certificate authority, tls-server-name or proxy-url; --force makes it lead to %s all the same",
			errChangedSince, now.Server, r.From.Server)
	}
	r.From.apply(c)
	delete(c.Extensions, extensionName)
	return nil
}

// redirectionOf reads a cluster's extension, if it has one. Paths in it are resolved as those of the cluster are: if it is
// known which file they are relative to.
func redirectionOf(c *clientcmdapi.Cluster) (r redirection, ok bool, err error) {
	extension, ok := c.Extensions[extensionName]
	if !ok {
		return redirection{}, false, nil
	}
	unknown, isUnknown := extension.(*runtime.Unknown)
	if !isUnknown {
		return redirection{}, false, fmt.Errorf("extension %s: %T instead of JSON", extensionName, extension)
	}
	if err := json.Unmarshal(unknown.Raw, &r); err != nil {
		return redirection{}, false, fmt.Errorf("extension %s: %w", extensionName, err)
	}
	if r.From.Server == "" {
		return redirection{}, false, fmt.Errorf("extension %s: from.server is missing; remove the extension and set the cluster's server by hand", extensionName)
	}
	if c.LocationOfOrigin == "" {
		return r, true, nil
	}
	base, err := filepath.Abs(filepath.Dir(c.LocationOfOrigin))
	if err == nil {
		err = clientcmd.ResolvePaths([]*string{&r.From.CertificateAuthority, &r.To.CertificateAuthority}, base)
	}
	if err != nil {
		return redirection{}, false, fmt.Errorf("extension %s: %w", extensionName, err)
	}
	return r, true, nil
}

// redirectedClusters returns the names of clusters that lead to a proxy.
func redirectedClusters(c *clientcmdapi.Config) (names []string) {
	for name, cluster := range c.Clusters {
		if _, ok := cluster.Extensions[extensionName]; ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
