package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

type kubeconfigFlags struct {
	kubeconfig, context                         string
	server, certificateAuthority, tlsServerName string
	to                                          string
	endpoint                                    *url.URL // server, parsed
}

func newKubeconfig() *cobra.Command {
	var f kubeconfigFlags
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Write a kubeconfig that leads to the proxy",
		Long: `kubeconfig writes a kubeconfig whose cluster is the proxy. Users stay as they are:
tokens, certificates, exec plugins. It holds only the contexts of that cluster,
because the proxy serves no other.`,
		Example: `  watchproxy kubeconfig --server http://127.0.0.1:8001 --to proxy.kubeconfig
  watchproxy kubeconfig --server https://watchproxy.example:6443 \
    --certificate-authority ca.crt --to proxy.kubeconfig`,
		Args: cobra.NoArgs,
		// An error before RunE is one of the command line.
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return cmp.Or(cmd.ValidateRequiredFlags(), f.validate())
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flag := func(to *string, name, usage string) { cmd.Flags().StringVar(to, name, "", usage) }
	flag(&f.kubeconfig, "kubeconfig", "kubeconfig `FILE` (default: $KUBECONFIG, whose files are "+
		"merged, or ~/.kube/config)")
	flag(&f.context, "context",
		"context `NAME` of the proxy's cluster (default: the current context)")
	flag(&f.server, "server", "`URL` of the proxy, http or https")
	flag(&f.certificateAuthority, "certificate-authority", "PEM `FILE` with the CAs of the "+
		"proxy's certificate, which is embedded (default: the cluster's)")
	flag(&f.tlsServerName, "tls-server-name", "`NAME` in the proxy's certificate, "+
		"if the URL has another one")
	flag(&f.to, "to", "write to `FILE`, which only its owner can read, instead of standard output")
	_ = cmd.MarkFlagRequired("server") // it exists
	return cmd
}

func (f *kubeconfigFlags) run(stdout, stderr io.Writer) error {
	rules, all, err := kubeconfigs(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	name := cmp.Or(f.context, all.CurrentContext)
	at, err := contextOf(all, name)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	proxy := all.Clusters[at.Cluster].DeepCopy()
	warnings, err := f.redirect(proxy)
	if err != nil {
		return err
	}
	all.Clusters[at.Cluster], all.CurrentContext = proxy, name
	keepCluster(all, at.Cluster)
	if err := f.write(stdout, all, rules.GetLoadingPrecedence()); err != nil {
		return err
	}
	for _, text := range warnings {
		fmt.Fprintln(stderr, "watchproxy: warning:", text)
	}
	return nil
}

func (f *kubeconfigFlags) validate() error {
	u, err := url.Parse(f.server)
	switch {
	case err != nil:
		return fmt.Errorf("--server %q: %w", f.server, errors.Unwrap(err))
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil,
		u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("--server %q: must begin with http:// or https:// and a host, "+
			"as in http://127.0.0.1:8001, and have no credentials, query or fragment", f.server)
	case u.Scheme == "http" && (f.certificateAuthority != "" || f.tlsServerName != ""):
		return fmt.Errorf("--server %q: --certificate-authority and --tls-server-name are for "+
			"https", f.server)
	}
	f.endpoint = u
	return nil
}

// redirect makes the proxy the server of a cluster, without settings for the apiserver alone.
func (f *kubeconfigFlags) redirect(c *clientcmdapi.Cluster) (warnings []string, err error) {
	c.Server, c.TLSServerName = f.server, f.tlsServerName
	host := f.endpoint.Hostname()
	loopback := host == "localhost" || net.ParseIP(host).IsLoopback()
	switch {
	case f.endpoint.Scheme == "http":
		c.CertificateAuthority, c.CertificateAuthorityData, c.InsecureSkipTLSVerify = "", nil, false
		warnings = append(warnings, "clients send no credentials over plain http, so requests act "+
			"as the proxy's own identity; users that have to keep theirs need a proxy with TLS "+
			"and --authentication=delegated")
		if !loopback {
			warnings = append(warnings, f.server+" is neither https nor on loopback: "+
				"others on the network can read all that the cluster answers")
		}
	case f.certificateAuthority != "":
		c.CertificateAuthority, c.InsecureSkipTLSVerify = "", false
		if c.CertificateAuthorityData, err = os.ReadFile(f.certificateAuthority); err != nil {
			return nil, fmt.Errorf("--certificate-authority: %w", err)
		}
		if _, err := cert.ParseCertsPEM(c.CertificateAuthorityData); err != nil {
			return nil, fmt.Errorf("--certificate-authority %s: no certificate in PEM: %w",
				f.certificateAuthority, err)
		}
	case c.InsecureSkipTLSVerify:
		warnings = append(warnings, "the cluster has insecure-skip-tls-verify, so the proxy's "+
			"certificate is not verified either; name its authority with --certificate-authority")
	case c.CertificateAuthority != "" || c.CertificateAuthorityData != nil:
		warnings = append(warnings, "the proxy's certificate is verified by the cluster's "+
			"certificate authority; if another has signed it, name that with "+
			"--certificate-authority")
	}
	if loopback {
		c.ProxyURL = ""
	}
	if c.ProxyURL != "" {
		warnings = append(warnings,
			"the way to "+f.server+" leads through the cluster's proxy-url as well")
	}
	return warnings, nil
}

func keepCluster(c *clientcmdapi.Config, cluster string) {
	users := map[string]bool{}
	maps.DeleteFunc(c.Contexts,
		func(_ string, at *clientcmdapi.Context) bool { return at.Cluster != cluster })
	for _, at := range c.Contexts {
		users[at.AuthInfo] = true
	}
	maps.DeleteFunc(c.Clusters,
		func(name string, _ *clientcmdapi.Cluster) bool { return name != cluster })
	maps.DeleteFunc(c.AuthInfos,
		func(name string, _ *clientcmdapi.AuthInfo) bool { return !users[name] })
}

// write replaces no file from which the kubeconfig was read, because that file may contain more.
func (f *kubeconfigFlags) write(stdout io.Writer, c *clientcmdapi.Config, sources []string) error {
	content, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if f.to == "" {
		_, err = stdout.Write(content)
		return err
	}
	if there, err := os.Stat(f.to); err == nil {
		isThis := func(source string) bool {
			info, err := os.Stat(source)
			return err == nil && os.SameFile(info, there)
		}
		if !there.Mode().IsRegular() || slices.ContainsFunc(sources, isThis) {
			return fmt.Errorf("--to %s: must be a file, and not the kubeconfig itself", f.to)
		}
	}
	// Only its owner can read such a file.
	temporary, err := os.CreateTemp(filepath.Dir(f.to), "."+filepath.Base(f.to)+".*")
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	_, err = temporary.Write(content)
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), f.to)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("--to: %w", err), os.Remove(temporary.Name()))
	}
	return nil
}
