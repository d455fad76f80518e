package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// kubeconfigFlags are the flags of kubeconfig.
type kubeconfigFlags struct {
	kubeconfig, context                         string
	server, certificateAuthority, tlsServerName string
	to                                          string
	inPlace, undo, force                        bool
}

func newKubeconfig() *cobra.Command {
	var f kubeconfigFlags
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Point a kubeconfig at the proxy, and back",
		Long: `kubeconfig writes a kubeconfig whose cluster is the proxy and whose users stay as
they are: tokens, certificates, exec plugins. It holds the contexts of that
cluster only, since the proxy leads to no other.

With --in-place the kubeconfig itself is changed, after a copy was made beside
it; other clusters in it stay as they are. --undo changes it back. What the
cluster was is kept in its extension watchproxy.dev.`,
		Example: `  watchproxy kubeconfig --server http://127.0.0.1:8001 --to proxy.kubeconfig
  watchproxy kubeconfig --server https://watchproxy.example:6443 --certificate-authority ca.crt --in-place
  watchproxy kubeconfig --undo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, whose files are merged, or ~/.kube/config)")
	flags.StringVar(&f.context, "context", "", "context `NAME` whose cluster it is about (default: the current context)")
	flags.StringVar(&f.server, "server", "", "`URL` of the proxy, http or https")
	flags.StringVar(&f.certificateAuthority, "certificate-authority", "", "PEM `FILE` with the authorities of the proxy's certificate, to be embedded (default: the cluster's)")
	flags.StringVar(&f.tlsServerName, "tls-server-name", "", "`NAME` in the proxy's certificate, if it is not that in the URL")
	flags.StringVar(&f.to, "to", "", "write to `FILE`, for its owner alone to read, instead of standard output")
	flags.BoolVar(&f.inPlace, "in-place", false, "change the kubeconfig instead of writing another")
	flags.BoolVar(&f.undo, "undo", false, "take back what --in-place has changed")
	flags.BoolVar(&f.force, "force", false, "with --undo: even if the cluster's address was changed since")
	cmd.MarkFlagsOneRequired("server", "undo")
	for _, flag := range []string{"server", "certificate-authority", "tls-server-name", "in-place", "to"} {
		cmd.MarkFlagsMutuallyExclusive("undo", flag)
	}
	cmd.MarkFlagsMutuallyExclusive("in-place", "to")
	return cmd
}

func (f *kubeconfigFlags) run(stdout, stderr io.Writer) error {
	if f.force && !f.undo {
		return errors.New("--force: there is nothing to force without --undo")
	}
	var to endpoint
	if !f.undo {
		var err error
		if to, err = f.endpoint(); err != nil {
			return err
		}
	}
	all, err := f.load()
	if err != nil {
		return err
	}
	name, err := clusterOf(all, f.context)
	if err != nil {
		return err
	}
	switch {
	case f.undo:
		return f.restore(all, name, stdout)
	case f.inPlace:
		return f.change(all, name, to, stdout, stderr)
	}
	warnings, err := redirect(all.Clusters[name], to)
	if err != nil {
		return fmt.Errorf("cluster %q: %w", name, err)
	}
	warn(stderr, append(warnings, userWarnings(all, name, to)...))
	if f.context != "" {
		all.CurrentContext = f.context
	}
	sources := filesOf(all)
	reduce(all, name)
	out, err := clientcmd.Write(*all)
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if f.to != "" {
		return writeTo(f.to, out, sources)
	}
	_, err = stdout.Write(out)
	return err
}

// filesOf are the files that a kubeconfig was read from.
func filesOf(c *clientcmdapi.Config) []string {
	names := map[string]bool{}
	for _, at := range c.Clusters {
		names[at.LocationOfOrigin] = true
	}
	for _, at := range c.Contexts {
		names[at.LocationOfOrigin] = true
	}
	for _, at := range c.AuthInfos {
		names[at.LocationOfOrigin] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// writeTo is --to. A file that is there is replaced, but for those that the kubeconfig was read from: they hold more.
func writeTo(name string, content []byte, sources []string) error {
	there, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wrapTo(replaceFile(name, content, private, nil))
	case err != nil:
		return wrapTo(err)
	case !there.Mode().IsRegular():
		return fmt.Errorf("--to %s: is no file", name)
	}
	for _, source := range sources {
		if info, err := os.Stat(source); err == nil && os.SameFile(info, there) {
			return fmt.Errorf("--to %s: the kubeconfig was read from there; change that by --in-place, or name another file", name)
		}
	}
	if name, err = filepath.EvalSymlinks(name); err == nil {
		err = replaceFile(name, content, private, nil)
	}
	return wrapTo(err)
}

func wrapTo(err error) error {
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	return nil
}

// load reads the kubeconfig as client-go does: the files of a list merged, relative paths made absolute.
func (f *kubeconfigFlags) load() (*clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	all, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(all.Contexts) == 0 {
		files := rules.GetLoadingPrecedence()
		if f.kubeconfig != "" {
			files = []string{f.kubeconfig}
		}
		return nil, fmt.Errorf("kubeconfig: no contexts in %s; name another with --kubeconfig or $KUBECONFIG", strings.Join(files, ", "))
	}
	return all, nil
}

// endpoint is where the flags point to.
func (f *kubeconfigFlags) endpoint() (endpoint, error) {
	to := endpoint{Server: f.server, TLSServerName: f.tlsServerName}
	secure, err := to.secure()
	if err != nil {
		return endpoint{}, fmt.Errorf("--server %q: %w", f.server, err)
	}
	if !secure && (f.certificateAuthority != "" || f.tlsServerName != "") {
		return endpoint{}, fmt.Errorf("--server %q: --certificate-authority and --tls-server-name are for https", f.server)
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

// change is --in-place.
func (f *kubeconfigFlags) change(all *clientcmdapi.Config, name string, to endpoint, stdout, stderr io.Writer) error {
	path := all.Clusters[name].LocationOfOrigin
	var warnings, others []string
	var backup string
	changed, err := edit(path, func(file *kubefile) error {
		c, err := file.cluster(name)
		if err != nil {
			return err
		}
		redirected := file.redirected()
		if warnings, err = redirect(c, to); err != nil {
			return fmt.Errorf("cluster %q in %s: %w", name, path, err)
		}
		file.first = func() (err error) {
			backup, others, err = file.backUp(redirected)
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	warn(stderr, append(warnings, userWarnings(all, name, to)...))
	if !changed {
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

// restore is --undo.
func (f *kubeconfigFlags) restore(all *clientcmdapi.Config, name string, stdout io.Writer) error {
	path := all.Clusters[name].LocationOfOrigin
	var server, how string
	_, err := edit(path, func(file *kubefile) error {
		c, err := file.cluster(name)
		if err != nil {
			return err
		}
		if err := revert(c, f.force); err != nil {
			err = fmt.Errorf("cluster %q in %s: %w", name, path, err)
			if names := redirectedClusters(all); errors.Is(err, errNotRedirected) && len(names) > 0 {
				err = fmt.Errorf("%w; clusters that were: %s (choose by --context)", err, quoted(names))
			}
			return err
		}
		server = c.Server
		how, err = file.settle()
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "cluster %q in %s leads to %s again%s\n", name, path, server, how)
	return nil
}

// clusterOf returns the name of the cluster that a context leads to, of the current one if none is named.
func clusterOf(c *clientcmdapi.Config, context string) (string, error) {
	contexts := quoted(slices.Sorted(maps.Keys(c.Contexts)))
	if context == "" {
		context = c.CurrentContext
	}
	if context == "" {
		return "", fmt.Errorf("kubeconfig: no current context; choose one by --context: %s", contexts)
	}
	at, ok := c.Contexts[context]
	if !ok {
		return "", fmt.Errorf("kubeconfig: no context %q; there are: %s", context, contexts)
	}
	if _, ok := c.Clusters[at.Cluster]; !ok {
		return "", fmt.Errorf("kubeconfig: context %q: no cluster %q; there are: %s", context, at.Cluster, quoted(slices.Sorted(maps.Keys(c.Clusters))))
	}
	return at.Cluster, nil
}

// reduce leaves one cluster, its contexts and their users.
func reduce(c *clientcmdapi.Config, cluster string) {
	users := map[string]bool{}
	maps.DeleteFunc(c.Contexts, func(_ string, at *clientcmdapi.Context) bool {
		if at.Cluster != cluster {
			return true
		}
		users[at.AuthInfo] = true
		return false
	})
	maps.DeleteFunc(c.Clusters, func(name string, _ *clientcmdapi.Cluster) bool { return name != cluster })
	maps.DeleteFunc(c.AuthInfos, func(name string, _ *clientcmdapi.AuthInfo) bool { return !users[name] })
}

func warn(w io.Writer, warnings []string) {
	for _, text := range warnings {
		fmt.Fprintln(w, "watchproxy: warning:", text)
	}
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(all, ", ")
}
