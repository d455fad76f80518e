// Package kubeconfig redirects a kubeconfig to the proxy, and back.
//
// clientcmd loads, merges and encodes kubeconfigs. This package replaces the files itself, because
// clientcmd.ModifyConfig truncates a file and then writes it. A crash in between would lose
// credentials. clientcmd does not keep comments; --undo restores them from a copy of the file.
//
// If serve's kubeconfig was redirected to the proxy itself, serve uses the original server.
// Otherwise no proxy could start after kubeconfig --in-place.
package kubeconfig

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/command"
)

type flags struct {
	kubeconfig, context                         string
	server, certificateAuthority, tlsServerName string
	to                                          string
	inPlace, undo, force                        bool
}

// Command returns the command kubeconfig.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Point a kubeconfig at the proxy, or back",
		Long: `kubeconfig writes a kubeconfig whose cluster is the proxy. Users stay as they are:
tokens, certificates, exec plugins. It holds only the contexts of that cluster,
because the proxy serves no other.

--in-place changes the kubeconfig itself and keeps a copy beside it. Other clusters
in it stay as they are. --undo changes it back. The cluster's extension watchproxy.dev
keeps the original address.`,
		Example: `  watchproxy kubeconfig --server http://127.0.0.1:8001 --to proxy.kubeconfig
  watchproxy kubeconfig --server https://watchproxy.example:6443 --certificate-authority ca.crt --in-place
  watchproxy kubeconfig --undo`,
		Args: command.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, whose files are merged, or ~/.kube/config)")
	set.StringVar(&f.context, "context", "", "context `NAME` of the cluster to change (default: the current context)")
	set.StringVar(&f.server, "server", "", "`URL` of the proxy, http or https")
	set.StringVar(&f.certificateAuthority, "certificate-authority", "", "PEM `FILE` with the CAs of the proxy's certificate, which is embedded (default: the cluster's)")
	set.StringVar(&f.tlsServerName, "tls-server-name", "", "`NAME` in the proxy's certificate, if the URL has another one")
	set.StringVar(&f.to, "to", "", "write to `FILE`, which only its owner can read, instead of standard output")
	set.BoolVar(&f.inPlace, "in-place", false, "change the kubeconfig itself")
	set.BoolVar(&f.undo, "undo", false, "revert --in-place")
	set.BoolVar(&f.force, "force", false, "with --undo: revert even if the cluster's address has changed since")
	cmd.MarkFlagsOneRequired("server", "undo")
	for _, flag := range []string{"server", "certificate-authority", "tls-server-name", "in-place", "to"} {
		cmd.MarkFlagsMutuallyExclusive("undo", flag)
	}
	cmd.MarkFlagsMutuallyExclusive("in-place", "to")
	return cmd
}

func (f *flags) run(stdout, stderr io.Writer) error {
	if f.force && !f.undo {
		return command.Misused("--force: there is nothing to force without --undo")
	}
	var to endpoint
	if !f.undo {
		var err error
		if to, err = f.endpoint(); err != nil {
			return err
		}
	}
	all, files, err := f.load()
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	name, err := clusterOf(all, f.context)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	switch {
	case f.undo:
		return f.revert(all, name, stdout)
	case f.inPlace:
		return f.redirect(all, name, to, stdout, stderr)
	}
	warnings, err := redirect(all.Clusters[name], to)
	if err != nil {
		return fmt.Errorf("cluster %q: %w", name, err)
	}
	warn(stderr, append(warnings, userWarnings(all, name, to)...))
	if f.context != "" {
		all.CurrentContext = f.context
	}
	reduce(all, name)
	out, err := clientcmd.Write(*all)
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if f.to == "" {
		_, err = stdout.Write(out)
		return err
	}
	if err := writeTo(f.to, out, files); err != nil {
		return fmt.Errorf("--to %s: %w", f.to, err)
	}
	return nil
}

// loading returns client-go's rules for finding a kubeconfig. The kubeconfig is the named file, or
// else the merged usual files.
func loading(file string) *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	return rules
}

// ErrNone means that no kubeconfig was named and that the usual places have no kubeconfig.
var ErrNone = errors.New("no kubeconfig found")

// ClientConfig returns the configuration of a context, by default of the current context. If the
// cluster was redirected to the caller itself, ClientConfig uses the original server. Errors are
// about the kubeconfig and contain a remedy.
func ClientConfig(file, context string, isSelf func(server string) bool) (*rest.Config, error) {
	rules := loading(file)
	all, err := rules.Load()
	if err != nil {
		return nil, err
	}
	if file == "" && clientcmdapi.IsConfigEmpty(all) {
		return nil, fmt.Errorf("%w: %s", ErrNone, searched())
	}
	if len(all.Contexts) == 0 {
		return nil, noContexts(rules)
	}
	// client-go's errors about these two cases name an environment variable that client-go does not
	// read here.
	if _, err := clusterOf(all, context); err != nil {
		return nil, err
	}
	for name, c := range all.Clusters {
		if !isSelf(c.Server) {
			continue
		}
		if err := revert(c, true); err != nil && !errors.Is(err, errNotRedirected) {
			return nil, fmt.Errorf("cluster %q: %w", name, err)
		}
	}
	return clientcmd.NewNonInteractiveClientConfig(*all, context, &clientcmd.ConfigOverrides{CurrentContext: context}, rules).ClientConfig()
}

// searched describes the files that client-go reads by default.
func searched() string {
	if files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); files != "" {
		return fmt.Sprintf("$%s names %s, and no cluster is in there", clientcmd.RecommendedConfigPathEnvVar, files)
	}
	return fmt.Sprintf("$%s is not set, and no cluster is in %s", clientcmd.RecommendedConfigPathEnvVar, clientcmd.RecommendedHomeFile)
}

func noContexts(rules *clientcmd.ClientConfigLoadingRules) error {
	return fmt.Errorf("no contexts in %s; name another with --kubeconfig or $KUBECONFIG", strings.Join(rules.GetLoadingPrecedence(), ", "))
}

func (f *flags) load() (all *clientcmdapi.Config, files []string, err error) {
	rules := loading(f.kubeconfig)
	files = rules.GetLoadingPrecedence()
	if all, err = rules.Load(); err != nil {
		return nil, nil, err
	}
	if len(all.Contexts) == 0 {
		return nil, nil, noContexts(rules)
	}
	return all, files, nil
}

// endpoint returns the endpoint in the flags.
func (f *flags) endpoint() (endpoint, error) {
	to := endpoint{Server: f.server, TLSServerName: f.tlsServerName}
	secure, err := speaksTLS(f.server)
	if err != nil {
		return endpoint{}, command.Misused("--server %q: %w", f.server, err)
	}
	if !secure && (f.certificateAuthority != "" || f.tlsServerName != "") {
		return endpoint{}, command.Misused("--server %q: --certificate-authority and --tls-server-name are for https", f.server)
	}
	if f.certificateAuthority == "" {
		return to, nil
	}
	if to.CertificateAuthorityData, err = os.ReadFile(f.certificateAuthority); err != nil {
		return endpoint{}, fmt.Errorf("--certificate-authority: %w", err)
	}
	if _, err := cert.ParseCertsPEM(to.CertificateAuthorityData); err != nil {
		return endpoint{}, fmt.Errorf("--certificate-authority %s: no certificate in PEM: %w", f.certificateAuthority, err)
	}
	return to, nil
}

// redirect implements --in-place.
func (f *flags) redirect(all *clientcmdapi.Config, name string, to endpoint, stdout, stderr io.Writer) error {
	path := all.Clusters[name].LocationOfOrigin
	var warnings, others []string
	var backup string
	err := edit(path, name, func(file *kubefile, c *clientcmdapi.Cluster) (err error) {
		before, repeated := c.DeepCopy(), file.redirected()
		if warnings, err = redirect(c, to); err != nil {
			return fmt.Errorf("cluster %q in %s: %w", name, path, err)
		}
		if reflect.DeepEqual(before, c) {
			return nil
		}
		if backup, others, err = file.backUp(repeated); err != nil {
			return err
		}
		return file.save()
	})
	if err != nil {
		return err
	}
	warn(stderr, append(warnings, userWarnings(all, name, to)...))
	if backup == "" {
		fmt.Fprintf(stdout, "cluster %q in %s leads to %s already\n", name, path, to.Server)
		return nil
	}
	older := ""
	if len(others) > 0 {
		older = "; older copies stay: " + strings.Join(others, ", ")
	}
	fmt.Fprintf(stdout, "cluster %q in %s now leads to %s; 'watchproxy kubeconfig --undo' takes it back, and a copy is in %s%s\n",
		name, path, to.Server, backup, older)
	return nil
}

// revert implements --undo.
func (f *flags) revert(all *clientcmdapi.Config, name string, stdout io.Writer) error {
	path := all.Clusters[name].LocationOfOrigin
	var server, how string
	err := edit(path, name, func(file *kubefile, c *clientcmdapi.Cluster) error {
		err := revert(c, f.force)
		if names := redirected(all); errors.Is(err, errNotRedirected) && len(names) > 0 {
			err = fmt.Errorf("%w; redirected clusters (choose by --context): %q", err, names)
		}
		if err != nil {
			return fmt.Errorf("cluster %q in %s: %w", name, path, err)
		}
		server = c.Server
		how, err = file.restore()
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "cluster %q in %s leads to %s again%s\n", name, path, server, how)
	return nil
}

// clusterOf returns the name of a context's cluster, by default of the current context's.
func clusterOf(c *clientcmdapi.Config, context string) (string, error) {
	contexts := slices.Sorted(maps.Keys(c.Contexts))
	if context == "" {
		context = c.CurrentContext
	}
	if context == "" {
		return "", fmt.Errorf("no current context; choose one by --context: %q", contexts)
	}
	at, ok := c.Contexts[context]
	if !ok {
		return "", fmt.Errorf("no context %q; there are: %q", context, contexts)
	}
	if _, ok := c.Clusters[at.Cluster]; !ok {
		return "", fmt.Errorf("context %q: no cluster %q; there are: %q", context, at.Cluster, slices.Sorted(maps.Keys(c.Clusters)))
	}
	return at.Cluster, nil
}

// reduce removes everything except a cluster, its contexts and their users.
func reduce(c *clientcmdapi.Config, cluster string) {
	users := map[string]bool{}
	maps.DeleteFunc(c.Contexts, func(_ string, at *clientcmdapi.Context) bool {
		if at.Cluster == cluster {
			users[at.AuthInfo] = true
		}
		return at.Cluster != cluster
	})
	maps.DeleteFunc(c.Clusters, func(name string, _ *clientcmdapi.Cluster) bool { return name != cluster })
	maps.DeleteFunc(c.AuthInfos, func(name string, _ *clientcmdapi.AuthInfo) bool { return !users[name] })
}

func warn(w io.Writer, warnings []string) {
	for _, text := range warnings {
		fmt.Fprintln(w, "watchproxy: warning:", text)
	}
}
