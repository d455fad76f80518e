package main

import (
	"path/filepath"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// invite prints how to point kubectl at the proxy.
func (d *demo) invite() error {
	kubeconfig := filepath.Join(d.dir, "kubeconfig")
	user := clientcmdapi.AuthInfo{Token: d.api.Token}
	if err := cluster.WriteKubeconfig(kubeconfig, d.proxy.URL, d.proxy.CA, user); err != nil {
		return err
	}
	// Without KUBECACHEDIR, kubectl would leave its discovery cache of this server in the home
	// directory.
	d.screen.say(strings.NewReplacer(
		"ROOT", cluster.Root(),
		"KUBECONFIG_FILE", kubeconfig,
		"CACHE_DIR", filepath.Join(d.dir, "kubectl"),
		"NAMESPACE", d.writer.pods[0].namespace,
		"POD", d.writer.pods[0].name,
		"ADMIN", d.proxy.AdminURL,
	).Replace(`
To try it, in another terminal:

  cd ROOT
  export KUBECONFIG=KUBECONFIG_FILE KUBECACHEDIR=CACHE_DIR

  bin/kubectl get pods -n NAMESPACE
  bin/kubectl get pods -n NAMESPACE --watch
  bin/kubectl delete pod -n NAMESPACE POD     # while that runs
  bin/kubectl get --raw '/api/v1/pods?resourceVersion=0' | wc -c     # from the cache
  bin/watchproxy status --admin ADMIN     # or ADMIN/ in a browser, which refreshes it

Ctrl-C ends the demo and leaves nothing running.
`))
	return nil
}
