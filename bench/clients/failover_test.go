package clients

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Two apiservers of one cluster fail in turn, each in its own way, under load. The proxy goes on with the other one from
// where it was: nobody reads a state again, no watch ends, each sees every change once, and reads that need upstream are
// answered again at once.
func TestFailover(t *testing.T) {
	t.Parallel()
	w := ownWorld(t)
	admin := file(t, w.api.Token+`,admin,admin,"system:masters"`+"\n")
	var servers []*cluster.APIServer
	for range 2 {
		servers = append(servers, cluster.APIServerT(t, cluster.Options{Etcd: w.api.Etcd, TokenFile: admin}))
	}
	settings := file(t, "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\nupstream: {contexts: [first, second]}\n")
	binary, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	// The world's own proxy stays where it is; the one that is looked at has two servers.
	defer func(before *cluster.Proxy) { w.proxy = before }(w.proxy)
	kubeconfig := contexts(t, map[string]*cluster.APIServer{"first": servers[0], "second": servers[1]})
	front := func(secure bool, more ...string) *cluster.Proxy {
		return cluster.ProxyT(t, cluster.ProxyOptions{Binary: binary, Kubeconfig: kubeconfig, TLS: secure, Args: append(more, "--config", settings)})
	}
	w.proxy = front(false)
	strict := front(true, "--authentication", "delegated") // asks upstream who its clients are
	guarded := w.endpoints(t)[1]
	guarded.url, guarded.token = strict.URL, w.api.Token
	guarded.client.Transport.(*http.Transport).TLSClientConfig.RootCAs.AppendCertsFromPEM(strict.CA)
	crowd := newCrowd(t, w)
	writer := startWriter(t, w, crowd[0])
	writer.proceed(t, 50)

	proxy := w.endpoints(t)[1]
	reads := func() bool {
		for _, target := range []string{"/api/v1/configmaps", "/api/v1/namespaces/" + crowded + "/configmaps/witness", "/version"} {
			for _, e := range []endpoint{proxy, guarded} {
				if e.get(t, target, nil).status != http.StatusOK {
					return false
				}
			}
		}
		return true
	}
	usable := func(s *cluster.APIServer) bool {
		return proxyMetrics(t, w.proxy).sum("watchproxy_upstream_server_usable", "server", strings.TrimPrefix(s.URL, "https://")) == 1
	}
	// leaves makes one server fail, which the proxy has to leave for the other.
	leaves := func(how string, from *cluster.APIServer, fail, mend func()) {
		t.Helper()
		before := proxyMetrics(t, w.proxy).sum("watchproxy_upstream_failovers_total")
		fail()
		eventually(t, how+": reads are answered", reads)
		writer.proceed(t, 100)
		crowd.stay(t)
		eventually(t, how+": the server is left", func() bool { return !usable(from) })
		if n := proxyMetrics(t, w.proxy).sum("watchproxy_upstream_failovers_total") - before; n != 1 {
			t.Errorf("%s: %v failovers", how, n)
		}
		mend()
		eventually(t, how+": the server is back", func() bool { return usable(from) })
		if !reads() {
			t.Errorf("%s: reads fail after the server is back", how)
		}
	}
	start := func(s *cluster.APIServer) {
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	signal := func(s *cluster.APIServer, signal syscall.Signal) func() {
		return func() {
			if err := syscall.Kill(s.PID(), signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	leaves("a crash", servers[0], servers[0].Kill, func() { start(servers[0]) })
	leaves("no sign of life", servers[1], signal(servers[1], syscall.SIGSTOP), signal(servers[1], syscall.SIGCONT))
	leaves("an orderly end", servers[0], func() {
		if err := servers[0].Stop(); err != nil {
			t.Error(err)
		}
	}, func() { start(servers[0]) })

	writer.stop()
	crowd.check(t, w, writer)
	if n := proxyMetrics(t, w.proxy).sum("watchproxy_feed_relists_total"); n != 0 {
		t.Errorf("%v relists", n)
	}
}

// A server of another cluster is never asked, and the one that remains is enough.
func TestFailoverToAnotherCluster(t *testing.T) {
	t.Parallel()
	w, other := ownWorld(t), cluster.APIServerT(t, cluster.Options{})
	settings := file(t, "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\nupstream: {contexts: [own, other]}\n")
	p := cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: contexts(t, map[string]*cluster.APIServer{"own": w.api, "other": other}), Args: []string{"--config", settings},
	})
	if _, body := tryGet(t, p.URL+"/api/v1/configmaps"); !strings.Contains(string(body), "ConfigMapList") {
		t.Fatalf("got %s", body)
	}
	w.api.Kill()
	for range 20 {
		if status, body := tryGet(t, p.URL+"/api/v1/namespaces"); status == http.StatusOK {
			t.Fatalf("another cluster has answered: %s", body)
		}
	}
	if err := w.api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its own cluster answers", func() bool {
		status, _ := tryGet(t, p.URL+"/api/v1/namespaces")
		return status == http.StatusOK
	})
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
