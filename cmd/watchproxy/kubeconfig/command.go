// Package kubeconfig writes kubeconfigs that lead to the proxy.
package kubeconfig

import (
	"cmp"
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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// suffix ends the names of the context and the cluster that --add adds.
const suffix = "-watchproxy"

type flags struct {
	kubeconfig, context                         string
	server, certificateAuthority, tlsServerName string
	to                                          string
	add                                         bool
}

// Command returns the command kubeconfig.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Write a kubeconfig that leads to the proxy",
		Long: `kubeconfig writes a kubeconfig whose cluster is the proxy. Users stay as they are:
tokens, certificates, exec plugins. It holds only the contexts of that cluster,
because the proxy serves no other.

With --add, the kubeconfig itself gets a further context and cluster for the proxy,
named after the context and its cluster, and ending in "-watchproxy". The new context
becomes the current one. 'kubectl config use-context' switches.`,
		Example: `  watchproxy kubeconfig --server http://127.0.0.1:8001 --to proxy.kubeconfig
  watchproxy kubeconfig --server https://watchproxy.example:6443 --certificate-authority ca.crt --add`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, whose files are merged, or ~/.kube/config)")
	set.StringVar(&f.context, "context", "", "context `NAME` of the proxy's cluster (default: the current context)")
	set.StringVar(&f.server, "server", "", "`URL` of the proxy, http or https")
	set.StringVar(&f.certificateAuthority, "certificate-authority", "", "PEM `FILE` with the CAs of the proxy's certificate, which is embedded (default: the cluster's)")
	set.StringVar(&f.tlsServerName, "tls-server-name", "", "`NAME` in the proxy's certificate, if the URL has another one")
	set.StringVar(&f.to, "to", "", "write to `FILE`, which only its owner can read, instead of standard output")
	set.BoolVar(&f.add, "add", false, "add a context to the kubeconfig itself")
	_ = cmd.MarkFlagRequired("server") // it exists
	cmd.MarkFlagsMutuallyExclusive("add", "to")
	return cmd
}

func (f *flags) run(stdout, stderr io.Writer) error {
	to, err := f.endpoint()
	if err != nil {
		return err
	}
	rules := loading(f.kubeconfig)
	all, err := rules.Load()
	if err == nil && len(all.Contexts) == 0 {
		err = noContexts(rules)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	name := original(all, cmp.Or(f.context, all.CurrentContext))
	at, err := contextOf(all, name)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	proxy := all.Clusters[at.Cluster].DeepCopy()
	warnings, users := lead(proxy, to), []string{at.AuthInfo}
	if f.add {
		err = add(rules, all, name, proxy)
	} else {
		all.Clusters[at.Cluster], all.CurrentContext = proxy, name
		reduce(all, at.Cluster)
		users = slices.Sorted(maps.Keys(all.AuthInfos))
		err = f.write(stdout, all, rules.GetLoadingPrecedence())
	}
	if err != nil {
		return err
	}
	for _, text := range append(warnings, userWarnings(all, users, to.Server)...) {
		fmt.Fprintln(stderr, "watchproxy: warning:", text)
	}
	if f.add {
		fmt.Fprintf(stdout, "the new context %q leads to %s; 'kubectl config use-context %s' leads back\n", name+suffix, to.Server, name)
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

// add adds the proxy's cluster and a context for it, and makes the context the current one.
func add(rules *clientcmd.ClientConfigLoadingRules, all *clientcmdapi.Config, name string, proxy *clientcmdapi.Cluster) error {
	context := all.Contexts[name].DeepCopy()
	context.Cluster += suffix
	context.LocationOfOrigin, proxy.LocationOfOrigin = "", "" // the file to which kubectl config would write
	if was := all.Contexts[name+suffix]; was != nil {
		context.LocationOfOrigin = was.LocationOfOrigin
	}
	if was := all.Clusters[context.Cluster]; was != nil {
		proxy.LocationOfOrigin = was.LocationOfOrigin
	}
	all.Contexts[name+suffix], all.Clusters[context.Cluster], all.CurrentContext = context, proxy, name+suffix
	if err := clientcmd.ModifyConfig(rules, *all, true); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

// original returns the context beside which --add has added a context, or else the context itself.
func original(all *clientcmdapi.Config, context string) string {
	if before, ok := strings.CutSuffix(context, suffix); ok && all.Contexts[before] != nil {
		return before
	}
	return context
}

// contextOf returns a context whose cluster exists.
func contextOf(c *clientcmdapi.Config, name string) (*clientcmdapi.Context, error) {
	contexts := slices.Sorted(maps.Keys(c.Contexts))
	if name == "" {
		return nil, fmt.Errorf("no current context; choose one by --context: %q", contexts)
	}
	at, ok := c.Contexts[name]
	if !ok {
		return nil, fmt.Errorf("no context %q; there are: %q", name, contexts)
	}
	if c.Clusters[at.Cluster] == nil {
		return nil, fmt.Errorf("context %q: no cluster %q; there are: %q", name, at.Cluster, slices.Sorted(maps.Keys(c.Clusters)))
	}
	return at, nil
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

// write writes a kubeconfig to the file of --to or to standard output. It does not replace a file
// from which the kubeconfig was read, because that file may contain more.
func (f *flags) write(stdout io.Writer, c *clientcmdapi.Config, sources []string) error {
	content, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if f.to == "" {
		_, err = stdout.Write(content)
		return err
	}
	there, err := os.Stat(f.to)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--to: %w", err)
	case err == nil && !there.Mode().IsRegular():
		return fmt.Errorf("--to %s: is no file", f.to)
	}
	for _, source := range sources {
		if info, err := os.Stat(source); err == nil && os.SameFile(info, there) {
			return fmt.Errorf("--to %s: the kubeconfig was read from there; add a context by --add, or name another file", f.to)
		}
	}
	temporary, err := os.CreateTemp(filepath.Dir(f.to), "."+filepath.Base(f.to)+".*") // with mode 0600
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

// ErrNone means that no kubeconfig was named and that the usual places have no kubeconfig.
var ErrNone = errors.New("no kubeconfig found")

// ClientConfig returns the configuration of a context, by default of the current context. If --add
// has added that context and it leads to the caller itself, the original context counts. Errors are
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
	context = cmp.Or(context, all.CurrentContext)
	at, err := contextOf(all, context)
	if err != nil {
		return nil, err
	}
	if isSelf(all.Clusters[at.Cluster].Server) {
		context = original(all, context)
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
