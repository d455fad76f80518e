package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/config"
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
		{"http://127.0.0.1:8001", "unix:///a", false},
	} {
		if got := isSelf(test.server, test.listen); got != test.want {
			t.Errorf("%s, listening on %s: %v", test.server, test.listen, got)
		}
	}
}

// If the current context was added for the proxy itself, the proxy uses the original context. If it was
// added for another proxy, the other proxy is upstream.
func TestRestConfigOfAdded(t *testing.T) {
	const own, original = "http://127.0.0.1:8001", "https://a.example:6443"
	path := kubeconfigFor(t, original)
	if _, err := execute("kubeconfig", "--kubeconfig", path, "--add", "--server", own); err != nil {
		t.Fatal(err)
	}
	for listen, want := range map[string]string{
		"127.0.0.1:8001": original,
		"127.0.0.1:9001": own,
	} {
		rc, err := restConfig(path, "", listen)
		if err != nil {
			t.Fatal(err)
		}
		if rc.Host != want {
			t.Errorf("listening on %s, upstream is %s, want %s", listen, rc.Host, want)
		}
	}

	_, err := restConfig(kubeconfigFor(t, own), "", "127.0.0.1:8001")
	if err == nil || !strings.Contains(err.Error(), "listens on") {
		t.Errorf("got %v", err)
	}
}

// A view of an unknown resource fails the start. If upstream does not tell its resources, the proxy
// starts and logs that it has not checked the views.
func TestViewsAreChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	const views = "views: [{name: a, resources: [pod], fields: [spec.x]}]\n"
	if err := os.WriteFile(file, []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\n"+views), 0o600); err != nil {
		t.Fatal(err)
	}
	documents := map[string]string{
		"/version": `{}`, "/api": `{"versions": ["v1"]}`, "/apis": `{}`, "/openapi/v3": `{}`,
		"/api/v1": `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod"}]}`,
	}
	serving := func(without string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == without {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, documents[req.URL.Path])
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	got := finish(t, "", nil, "serve", "--kubeconfig", kubeconfigFor(t, serving("")), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--config", file)
	if want := "watchproxy: configuration: views[0].resources[0]: upstream has no resource pod; it has pods\n"; got.code != 1 || got.stderr != want {
		t.Errorf("%+v, want %s", got, want)
	}
	var log bytes.Buffer
	p := start(t, serving("/openapi/v3"), &log, "--config", file)
	p.ready(t)
	p.end(t)
	if text := log.String(); !strings.Contains(text, "the paths of views are not all checked") || !strings.Contains(text, "read upstream's OpenAPI: ") {
		t.Error(text)
	}
}
