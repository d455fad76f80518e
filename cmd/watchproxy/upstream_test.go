package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

func TestIsSelf(t *testing.T) {
	for _, test := range []struct {
		server, listen string
		want           bool
	}{
		{"http://127.0.0.1:8001", "127.0.0.1:8001", true},
		{"http://localhost:8001", "127.0.0.1:8001", true},
		{"https://127.0.0.1:6443", "0.0.0.0:6443", true},
		{"https://[::1]:6443", ":6443", true},
		{"https://10.0.0.1:6443", "10.0.0.1:6443", true},
		{"https://127.0.0.1:6443", "10.0.0.1:6443", false},
		{"https://10.0.0.1:6443", "0.0.0.0:6443", false},
		{"http://127.0.0.1:8002", "127.0.0.1:8001", false},
		{"http://127.0.0.1:8001", "127.0.0.1:0", false},
		{"https://a.example:443", "b.example:443", false},
		{"https://a.example:443", ":443", false},
	} {
		if got := isSelf(test.server, test.listen); got != test.want {
			t.Errorf("%s, listening on %s: %v", test.server, test.listen, got)
		}
	}
}

// A proxy is never its own upstream.
func TestRestConfigOfItself(t *testing.T) {
	const own = "http://127.0.0.1:8001"
	_, err := restConfig(kubeconfigFor(t, own), "", "127.0.0.1:8001")
	if err == nil || !strings.Contains(err.Error(), "listens on") {
		t.Errorf("got %v", err)
	}
}

// The pod's namespace is the one beside the token of its service account.
func TestNamespace(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	for _, test := range []struct {
		file, content, token, want string
	}{
		{"other", "", token, ""},
		{"namespace", "apps\n", token, "apps"},
		{"namespace", "apps", "", ""},
	} {
		if err := os.WriteFile(filepath.Join(dir, test.file), []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := namespaceOf(&rest.Config{BearerTokenFile: test.token}); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// The checks of several servers notice a lost connection only if feeds and reviews share it.
func TestChecksShareTheConnection(t *testing.T) {
	var addresses []string
	var connections [2]atomic.Int64
	for i := range connections {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
		}))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections[i].Add(1)
			}
		}
		server.Start()
		t.Cleanup(server.Close)
		addresses = append(addresses, server.URL)
	}
	u := config.Upstream{Kubeconfig: kubeconfigFor(t, addresses[0]), Servers: addresses}
	metrics := upstream.NewMetrics(prometheus.NewRegistry())
	behind, err := connect(t.Context(), &config.ProxyConfiguration{Upstream: u, Listen: "127.0.0.1:1"}, 1<<16, metrics, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []http.RoundTripper{behind.client(metrics).HTTP.Transport, behind.config().Transport} {
		resp, err := way.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, addresses[0]+"/version", nil))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	for i := range connections {
		if n := connections[i].Load(); n != 1 {
			t.Errorf("server %d has %d connections", i, n)
		}
	}
}
