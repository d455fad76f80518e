package kubeconfig

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/command"
)

// endpoint returns the address in the flags, and the settings for the connection to it.
func (f *flags) endpoint() (to clientcmdapi.Cluster, err error) {
	to.Server, to.TLSServerName = f.server, f.tlsServerName
	if err := checkServer(f.server); err != nil {
		return to, command.Misused("--server %q: %w", f.server, err)
	}
	if !speaksTLS(f.server) && (f.certificateAuthority != "" || f.tlsServerName != "") {
		return to, command.Misused("--server %q: --certificate-authority and --tls-server-name are for https", f.server)
	}
	if f.certificateAuthority == "" {
		return to, nil
	}
	if to.CertificateAuthorityData, err = os.ReadFile(f.certificateAuthority); err != nil {
		return to, fmt.Errorf("--certificate-authority: %w", err)
	}
	if _, err := cert.ParseCertsPEM(to.CertificateAuthorityData); err != nil {
		return to, fmt.Errorf("--certificate-authority %s: no certificate in PEM: %w", f.certificateAuthority, err)
	}
	return to, nil
}

// checkServer returns an error that says why clients cannot use the proxy's URL.
func checkServer(server string) error {
	u, err := url.Parse(server)
	switch {
	case err != nil:
		return errors.Unwrap(err)
	case u.Scheme == "unix":
		return errors.New("kubectl and client-go cannot connect to a Unix socket; have the proxy listen on loopback (serve --listen 127.0.0.1:8001) and name http://127.0.0.1:8001")
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return errors.New("must begin with http:// or https:// and a host, as in http://127.0.0.1:8001")
	case u.User != nil:
		return errors.New("must not hold credentials; they belong to a user of the kubeconfig")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("must not have a query or a fragment")
	}
	return nil
}

func speaksTLS(server string) bool {
	u, err := url.Parse(server)
	return err == nil && u.Scheme == "https"
}

func isLoopback(server string) bool {
	u, err := url.Parse(server)
	return err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback())
}

// lead sets a cluster's endpoint to the proxy. It removes the apiserver's own settings unless they can
// also apply to the proxy. Its warnings tell the user what to check.
func lead(c *clientcmdapi.Cluster, to clientcmdapi.Cluster) (warnings []string) {
	from, secure := *c, speaksTLS(to.Server)
	c.Server, c.TLSServerName = to.Server, to.TLSServerName
	c.CertificateAuthority, c.CertificateAuthorityData = "", to.CertificateAuthorityData
	c.InsecureSkipTLSVerify, c.ProxyURL = false, ""
	switch {
	case !secure && !isLoopback(to.Server):
		warnings = append(warnings, to.Server+" is neither https nor on loopback: others on the network can read all that the cluster answers")
	case secure && to.CertificateAuthorityData == nil && from.InsecureSkipTLSVerify:
		c.InsecureSkipTLSVerify = true
		warnings = append(warnings, "the cluster has insecure-skip-tls-verify, so the proxy's certificate is not verified either; name its authority with --certificate-authority")
	case secure && to.CertificateAuthorityData == nil:
		c.CertificateAuthority, c.CertificateAuthorityData = from.CertificateAuthority, from.CertificateAuthorityData
		if c.CertificateAuthority != "" || c.CertificateAuthorityData != nil {
			warnings = append(warnings, "the proxy's certificate is verified by the cluster's certificate authority; if another has signed it, name that with --certificate-authority")
		}
	}
	if from.ProxyURL != "" && !isLoopback(to.Server) {
		c.ProxyURL = from.ProxyURL
		warnings = append(warnings, "the way to "+to.Server+" leads through the cluster's proxy-url as well")
	}
	return warnings
}

// userWarnings returns a warning for each user whose credentials do not work at the proxy.
func userWarnings(c *clientcmdapi.Config, users []string, server string) (warnings []string) {
	for _, name := range users {
		u := c.AuthInfos[name]
		if u == nil {
			continue
		}
		what := credentials(u)
		switch {
		case !speaksTLS(server) && what != "":
			warnings = append(warnings, fmt.Sprintf("user %q: clients do not send its %s over plain http; requests act as the proxy's own identity. "+
				"A user that has to keep its identity needs a proxy with TLS and --authentication=delegated", name, what))
		case speaksTLS(server) && u.Exec != nil && u.Exec.ProvideClusterInfo:
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
