// Package kubeconfig reads kubeconfigs, and writes kubeconfigs that lead to the proxy.
package kubeconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// suffix ends the names of the context and the cluster that --add adds.
const suffix = "-watchproxy"

// ClientConfig returns the configuration of a context, by default of the current context. If --add
// has added that context and it leads to the caller itself, the original context counts. Errors are
// about the kubeconfig and contain a remedy.
func ClientConfig(file, context string, isSelf func(server string) bool) (*rest.Config, error) {
	rules, all, err := load(file)
	if err != nil {
		return nil, err
	}
	// client-go's errors about contexts name an environment variable that is not read here.
	context = cmp.Or(context, all.CurrentContext)
	at, err := contextOf(all, context)
	if err != nil {
		return nil, err
	}
	if isSelf(all.Clusters[at.Cluster].Server) {
		context = original(all, context)
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	return clientcmd.NewNonInteractiveClientConfig(*all, context, overrides, rules).ClientConfig()
}

// load reads the named kubeconfig, or else the merged usual ones.
func load(file string) (*clientcmd.ClientConfigLoadingRules, *clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	all, err := rules.Load()
	if err == nil && len(all.Contexts) == 0 {
		err = fmt.Errorf("no contexts in %s; name another with --kubeconfig or $KUBECONFIG",
			strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	return rules, all, err
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
		clusters := slices.Sorted(maps.Keys(c.Clusters))
		return nil, fmt.Errorf("context %q: no cluster %q; there are: %q", name, at.Cluster, clusters)
	}
	return at, nil
}
