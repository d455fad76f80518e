package kubeconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// extensionName is the name of the cluster extension that contains a redirection.
const extensionName = "watchproxy.dev"

// redirection is the content of the extension: the cluster's original endpoint and the proxy's
// endpoint. If the cluster's present endpoint differs from To, the cluster was edited after the
// redirection.
type redirection struct {
	From endpoint `json:"from"`
	To   endpoint `json:"to"`
}

// endpoint is a cluster's address and the settings for the connection to it.
type endpoint = clientcmdapi.Cluster

func endpointOf(c *clientcmdapi.Cluster) endpoint {
	e := *c
	e.DisableCompression, e.Extensions = false, nil
	return e
}

// lead sets a cluster's endpoint.
func lead(c *clientcmdapi.Cluster, to endpoint) {
	to.DisableCompression, to.Extensions = c.DisableCompression, c.Extensions
	*c = to
}

// speaksTLS reports whether clients use TLS for the proxy's URL. The error says why clients cannot
// use the URL at all.
func speaksTLS(server string) (bool, error) {
	u, err := url.Parse(server)
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

// isLoopback reports whether a server's address is a loopback address.
func isLoopback(server string) bool {
	u, err := url.Parse(server)
	return err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback())
}

// redirect sets a cluster's endpoint to the proxy. It removes the apiserver's own settings unless
// they can also apply to the proxy. Its warnings tell the user what to check.
func redirect(c *clientcmdapi.Cluster, to endpoint) (warnings []string, err error) {
	secure, err := speaksTLS(to.Server)
	if err != nil {
		return nil, err
	}
	before, err := redirectionOf(c)
	if err != nil {
		return nil, err
	}
	now := endpointOf(c)
	from := now
	if before != nil && reflect.DeepEqual(now, before.To) {
		from = before.From
	}
	to.LocationOfOrigin = c.LocationOfOrigin

	switch {
	case !secure && !isLoopback(to.Server):
		warnings = append(warnings, to.Server+" is neither https nor on loopback: others on the network can read all that the cluster answers")
	case secure && to.CertificateAuthorityData == nil && from.InsecureSkipTLSVerify:
		to.InsecureSkipTLSVerify = true
		warnings = append(warnings, "the cluster has insecure-skip-tls-verify, so the proxy's certificate is not verified either; name its authority with --certificate-authority")
	case secure && to.CertificateAuthorityData == nil:
		to.CertificateAuthority, to.CertificateAuthorityData = from.CertificateAuthority, from.CertificateAuthorityData
		if to.CertificateAuthority != "" || to.CertificateAuthorityData != nil {
			warnings = append(warnings, "the proxy's certificate is verified by the cluster's certificate authority; if another has signed it, name that with --certificate-authority")
		}
	}
	if from.ProxyURL != "" && !isLoopback(to.Server) {
		to.ProxyURL = from.ProxyURL
		warnings = append(warnings, "the way to "+to.Server+" leads through the cluster's proxy-url as well")
	}

	after := &redirection{From: from, To: to}
	if reflect.DeepEqual(before, after) && reflect.DeepEqual(now, to) {
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
	lead(c, to)
	return warnings, nil
}

// userWarnings returns a warning for each user of a cluster whose credentials do not work at the
// proxy's endpoint.
func userWarnings(c *clientcmdapi.Config, cluster string, to endpoint) (warnings []string) {
	secure, _ := speaksTLS(to.Server) // redirect has checked the URL
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
			warnings = append(warnings, fmt.Sprintf("user %q: clients do not send its %s over plain http; requests act as the proxy's own identity. "+
				"A user that has to keep its identity needs a proxy with TLS and --authentication=delegated", name, what))
		case secure && u.Exec != nil && u.Exec.ProvideClusterInfo:
			warnings = append(warnings, fmt.Sprintf("user %q: its exec plugin is told the proxy's address instead of the apiserver's (provideClusterInfo)", name))
		}
	}
	return warnings
}

// credentials returns the kind of a user's credentials, or "" if the user has none.
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

// revert undoes a redirection. If the cluster was edited after the redirection, revert needs force.
func revert(c *clientcmdapi.Cluster, force bool) error {
	r, err := redirectionOf(c)
	if err != nil {
		return err
	}
	if r == nil {
		return errNotRedirected
	}
	if now := endpointOf(c); !force && !reflect.DeepEqual(now, r.To) && !reflect.DeepEqual(now, r.From) {
		return fmt.Errorf("%w: it leads to %s, or differs in certificate authority, tls-server-name or proxy-url; --force makes it lead to %s all the same",
			errChangedSince, now.Server, r.From.Server)
	}
	lead(c, r.From)
	delete(c.Extensions, extensionName)
	return nil
}

// redirectionOf returns the content of a cluster's extension, or nil. Relative paths in the
// extension are resolved like the cluster's paths.
func redirectionOf(c *clientcmdapi.Cluster) (*redirection, error) {
	extension, ok := c.Extensions[extensionName]
	if !ok {
		return nil, nil
	}
	unknown, ok := extension.(*runtime.Unknown)
	if !ok {
		return nil, fmt.Errorf("extension %s: %T instead of JSON", extensionName, extension)
	}
	r := &redirection{}
	if err := json.Unmarshal(unknown.Raw, r); err != nil {
		return nil, fmt.Errorf("extension %s: %w", extensionName, err)
	}
	if r.From.Server == "" {
		return nil, fmt.Errorf("extension %s: from.server is missing; remove the extension and set the cluster's server by hand", extensionName)
	}
	r.From.LocationOfOrigin, r.To.LocationOfOrigin = c.LocationOfOrigin, c.LocationOfOrigin
	if err := clientcmd.ResolveLocalPaths(&clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"from": &r.From, "to": &r.To}}); err != nil {
		return nil, fmt.Errorf("extension %s: %w", extensionName, err)
	}
	return r, nil
}

// redirected returns the names of the clusters that are redirected to a proxy.
func redirected(c *clientcmdapi.Config) (names []string) {
	for name, cluster := range c.Clusters {
		if _, ok := cluster.Extensions[extensionName]; ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
