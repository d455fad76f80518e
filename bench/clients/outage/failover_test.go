package outage

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Two apiservers of one cluster fail in turn under load, each in different ways. The proxy
// continues at the other server from the same resourceVersions: it reads no state again, no watch
// ends, and each watch sees every change once. Reads that need upstream work again immediately.
func TestFailover(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	servers, options := twoServers(t, w, cluster.Options{})
	w.Proxy = cluster.ProxyT(t, options)
	options.Args = []string{"--authentication", "delegated"} // asks upstream to authenticate its clients
	strict := cluster.ProxyT(t, options)
	guarded := cluster.EndpointT(t, "guarded", strict.URL, w.API.Token, strict.CA)
	crowd := newCrowd(t, w)
	writer := startWriter(t, w)
	writer.proceed(t, 50)

	proxy := w.Endpoints(t)[1]
	reads := func() bool {
		for _, target := range []string{"/api/v1/configmaps", "/api/v1/namespaces/" + crowded + "/configmaps/witness", "/version"} {
			for _, e := range []*cluster.Endpoint{proxy, guarded} {
				if e.GetT(t, target, nil).Status != http.StatusOK {
					return false
				}
			}
		}
		return true
	}
	usable := func(s *cluster.APIServer) bool {
		return w.Proxy.MetricsT(t).Sum("watchproxy_upstream_server_usable", cluster.Label("server", s.Address())) == 1
	}
	switches := func() int { return strings.Count(w.Proxy.Log(), "switched to another upstream server") }
	// leaves makes one server fail and checks that the proxy then uses the other server.
	leaves := func(how string, from *cluster.APIServer, fail, mend func()) {
		t.Helper()
		before := switches()
		fail()
		cluster.Eventually(t, how+": reads are answered", reads)
		writer.proceed(t, 100)
		crowd.stay(t)
		cluster.Eventually(t, how+": the server is left", func() bool { return !usable(from) })
		if n := switches() - before; n != 1 {
			t.Errorf("%s: %d failovers", how, n)
		}
		mend()
		cluster.Eventually(t, how+": the server is back", func() bool { return usable(from) })
		if !reads() {
			t.Errorf("%s: reads fail after the server is back", how)
		}
	}
	signal := func(s *cluster.APIServer, signal syscall.Signal) func() {
		return func() {
			if err := s.Signal(signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	leaves("a crash", servers[0], servers[0].Kill, func() { start(t, servers[0]) })
	leaves("no sign of life", servers[1], signal(servers[1], syscall.SIGSTOP), signal(servers[1], syscall.SIGCONT))
	leaves("an orderly end", servers[0], func() {
		if err := servers[0].Stop(); err != nil {
			t.Error(err)
		}
	}, func() { start(t, servers[0]) })

	crowd.check(t, w, writer)
	if n := w.Proxy.MetricsT(t).Sum("watchproxy_feed_relists_total"); n != 0 {
		t.Errorf("%v relists", n)
	}
}

// twoServers starts two further apiservers of the world's cluster. It returns the options of a proxy
// in front of both.
func twoServers(t *testing.T, w *clients.World, options cluster.Options) ([]*cluster.APIServer, cluster.ProxyOptions) {
	t.Helper()
	options.Etcd, options.Users = w.API.Etcd, w.API.Token+`,admin,admin,"system:masters"`+"\n"
	var servers []*cluster.APIServer
	for range 2 {
		servers = append(servers, cluster.APIServerT(t, options))
	}
	return servers, cluster.ProxyOptions{
		Kubeconfig: contexts(t, map[string]*cluster.APIServer{"first": servers[0], "second": servers[1]}),
		Settings:   "upstream: {contexts: [first, second]}\n", TLS: true,
	}
}

// contexts writes a kubeconfig with a context for each server.
func contexts(t *testing.T, servers map[string]*cluster.APIServer) (path string) {
	t.Helper()
	config := clientcmdapi.NewConfig()
	for name, s := range servers {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: s.CA}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: s.Token}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func start(t *testing.T, s *cluster.APIServer) {
	t.Helper()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}
