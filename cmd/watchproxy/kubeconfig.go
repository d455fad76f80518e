package main

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

// clientConfig returns the configuration of a context (default: the current). Errors have a remedy.
func clientConfig(file, context string) (*rest.Config, error) {
	rules, all, err := kubeconfigs(file)
	if err != nil {
		return nil, err
	}
	// client-go's errors about contexts name an environment variable that is not read here.
	context = cmp.Or(context, all.CurrentContext)
	if _, err := contextOf(all, context); err != nil {
		return nil, err
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	return clientcmd.NewNonInteractiveClientConfig(*all, context, overrides, rules).ClientConfig()
}

func kubeconfigs(file string) (*clientcmd.ClientConfigLoadingRules, *clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	all, err := rules.Load()
	if err == nil && len(all.Contexts) == 0 {
		err = fmt.Errorf("no contexts in %s; name another with --kubeconfig or $KUBECONFIG",
			strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	return rules, all, err
}

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
		return nil, fmt.Errorf("context %q: no cluster %q; there are: %q", name, at.Cluster,
			clusters)
	}
	return at, nil
}
