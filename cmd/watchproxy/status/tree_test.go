package status

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Proxies are shown below the proxy that is their upstream, by its address or by the name of its
// Service. Two replicas are not below each other, and a proxy that does not answer is named.
func TestTree(t *testing.T) {
	shown := map[string]*Status{
		"central-1": {Upstream: "https://10.0.0.1:6443", Listen: "https://[::]:6443", Names: []string{"watchproxy.kube-system.svc", "127.0.0.1"}},
		"central-2": {Upstream: "https://10.0.0.1:6443", Listen: "https://[::]:6443", Names: []string{"watchproxy.kube-system.svc", "127.0.0.1"}},
		"node-1":    {Upstream: "https://watchproxy.kube-system.svc:443", Listen: "https://127.0.0.1:6444", Names: []string{"127.0.0.1"}},
		"sidecar":   {Upstream: "https://127.0.0.1:6444", Listen: "https://127.0.0.1:6443", Names: []string{"127.0.0.1"}},
		"elsewhere": {Upstream: "https://other:6443", Listen: "https://127.0.0.1:1", Names: []string{"127.0.0.1"}, UpstreamSilentSeconds: 100},
	}
	var admins []string
	var pairs []string
	for _, name := range []string{"central-1", "central-2", "node-1", "sidecar", "elsewhere", "gone"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/status" || shown[name] == nil {
				http.NotFound(w, r)
				return
			}
			shown[name].Version = "v1"
			_ = json.NewEncoder(w).Encode(shown[name])
		}))
		defer server.Close()
		admins, pairs = append(admins, server.URL), append(pairs, server.URL, name)
	}
	names := strings.NewReplacer(pairs...)
	var out, problems bytes.Buffer
	if err := printTree(context.Background(), admins, &out, &problems); err == nil || !strings.Contains(names.Replace(problems.String()), "gone answers 404") {
		t.Errorf("%v, %s", err, problems.String())
	}
	var got []string
	for line := range strings.Lines(names.Replace(out.String())) {
		first, _, _ := strings.Cut(strings.TrimRight(line, " \n"), "  v1")
		got = append(got, strings.TrimRight(first, " "))
	}
	want := []string{
		"https://10.0.0.1:6443", "├─ central-1", "│  └─ node-1", "│     └─ sidecar", "└─ central-2", "https://other:6443", "└─ elsewhere",
	}
	if strings.Join(got[1:], "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got[1:], "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(out.String(), "upstream") {
		t.Errorf("the state of the proxy without upstream is missing:\n%s", out.String())
	}
}
