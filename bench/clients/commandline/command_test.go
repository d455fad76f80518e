package commandline

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// runWatchproxy runs a command that ends by itself.
func runWatchproxy(t *testing.T, args ...string) clients.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	defer cancel()
	binary, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return clients.Finish(t, clients.Command(ctx, t.TempDir(), binary, args...))
}

// file writes a temporary file.
func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const header = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n"

// If the proxy cannot start, it soon reports the error in one line. The exit code is 2 if the
// command line is wrong, else 1.
func TestServeRefusesToStart(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() // it accepts connections but never answers
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	address := taken.Addr().String()
	good := w.API.Kubeconfig

	const misused = "(see 'watchproxy serve --help')"
	for name, test := range map[string]struct {
		args []string
		says []string
	}{
		"unknown flag":       {[]string{"--nonsense"}, []string{"unknown flag --nonsense", misused}},
		"argument":           {[]string{"nonsense"}, []string{`"nonsense"`, misused}},
		"flag without value": {[]string{"--listen"}, []string{"--listen", misused}},
		"no file":            {[]string{"--config", "/no/such/file"}, []string{"/no/such/file"}},
		"no YAML":            {[]string{"--config", file(t, header+"a: b: c\n")}, []string{"file.yaml"}},
		"unknown field":      {[]string{"--config", file(t, header+"cache: {nonsense: 1}\n")}, []string{"file.yaml", "cache.nonsense: "}},
		"field given twice":  {[]string{"--config", file(t, header+"drain: 1s\ndrain: 2s\n")}, []string{"file.yaml", "drain: Forbidden: is given twice"}},
		"wrong type":         {[]string{"--config", file(t, header+"cache: {log: {maxEvents: many}}\n")}, []string{"file.yaml", "maxEvents"}},
		"another kind":       {[]string{"--config", file(t, "apiVersion: v1\nkind: Pod\n")}, []string{"apiVersion", "kind"}},
		"many at once": {
			[]string{"--admin-listen", "nonsense", "--log-level", "loud", "--config", file(t, header+
				"listen: 10.1.2.3:1\ndrain: -1s\ncache: {exclude: [pods, Pods/x], syncTimeout: -1s, idleTimeout: -2s, log: {maxAge: 1ms, maxEvents: 0, maxBytes: 0}}\n")},
			[]string{
				"tls: ", "10.1.2.3:1", "adminListen: ", `"nonsense"`, "drain: ", "logLevel: ", `"loud"`, "cache.exclude[1]: ",
				"cache.syncTimeout: ", "cache.idleTimeout: ", "cache.log.maxAge: ", "cache.log.maxEvents: ", "cache.log.maxBytes: ",
			},
		},
		"not loopback": {[]string{"--listen", "0.0.0.0:8001"}, []string{"tls: ", "0.0.0.0:8001", "certFile", "127.0.0.1"}},
		"not authenticated": {
			[]string{"--listen", "0.0.0.0:8001", "--authentication", "none", "--tls-cert-file", "a", "--tls-private-key-file", "b"},
			[]string{"authentication.mode: ", "0.0.0.0:8001", "delegated"},
		},
		"not loopback, any":         {[]string{"--listen", ":8001"}, []string{"listen", ":8001", "127.0.0.1"}},
		"not loopback, by name":     {[]string{"--listen", "example.com:8001"}, []string{"listen", "example.com:8001", "127.0.0.1"}},
		"no such port":              {[]string{"--listen", "127.0.0.1:123456"}, []string{"listen", "127.0.0.1:123456"}},
		"no kubeconfig":             {[]string{"--kubeconfig", "/no/such/kubeconfig"}, []string{"kubeconfig", "/no/such/kubeconfig"}},
		"no kubeconfig anywhere":    {nil, []string{"no kubeconfig found", "--kubeconfig"}},
		"broken kubeconfig":         {[]string{"--kubeconfig", file(t, "nonsense")}, []string{"kubeconfig"}},
		"unknown context":           {[]string{"--kubeconfig", good, "--context", "nonsense"}, []string{"nonsense"}},
		"upstream is not there":     {[]string{"--kubeconfig", cluster.KubeconfigT(t, gone.URL, nil, "")}, []string{gone.URL, "refused"}},
		"upstream says nothing":     {[]string{"--kubeconfig", cluster.KubeconfigT(t, "http://"+address, nil, "")}, []string{address, "10s"}},
		"upstream is another":       {[]string{"--kubeconfig", cluster.KubeconfigT(t, other.URL, nil, "")}, []string{other.URL, "404"}},
		"upstream has no address":   {[]string{"--kubeconfig", cluster.KubeconfigT(t, "http://nonsense.invalid:1", nil, "")}, []string{"nonsense.invalid"}},
		"upstream is unknown":       {[]string{"--kubeconfig", cluster.KubeconfigT(t, w.API.URL, nil, "")}, []string{w.API.URL, "certificate"}},
		"bad credentials":           {[]string{"--kubeconfig", w.API.KubeconfigT(t, w.API.URL, "nonsense")}, []string{w.API.URL, "401", "credentials"}},
		"port in use":               {[]string{"--kubeconfig", good, "--listen", address, "--admin-listen", "127.0.0.1:0"}, []string{"listen", address, "in use"}},
		"admin port in use":         {[]string{"--kubeconfig", good, "--listen", "127.0.0.1:0", "--admin-listen", address}, []string{"adminListen", address, "in use"}},
		"TLS without a key":         {[]string{"--tls-cert-file", "/nowhere"}, []string{"tls.privateKeyFile: Required"}},
		"TLS without a certificate": {[]string{"--tls-private-key-file", "/nowhere"}, []string{"tls.certFile: Required"}},
		"TLS without files":         {[]string{"--kubeconfig", good, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--tls-cert-file", "/nowhere", "--tls-private-key-file", "/nowhere"}, []string{"certFile /nowhere"}},
		"GOAWAY too often":          {[]string{"--goaway-chance", "0.5"}, []string{"goawayChance"}},
	} {
		t.Run(name, func(t *testing.T) {
			const soon = 20 * time.Second // the proxy waits 10 seconds for upstream
			began := time.Now()
			got := runWatchproxy(t, append([]string{"serve"}, test.args...)...)
			if took := time.Since(began); took > soon {
				t.Errorf("it took %v", took)
			}
			code := 1
			if slices.Contains(test.says, misused) {
				code = 2
			}
			if got.Code != code || got.Stdout != "" {
				t.Errorf("exit code %d, output %q", got.Code, got.Stdout)
			}
			line, isLine := strings.CutSuffix(got.Stderr, "\n")
			if !isLine || strings.Contains(line, "\n") || !strings.HasPrefix(line, "watchproxy: ") {
				t.Errorf("not one line:\n%s", got.Stderr)
			}
			for _, what := range test.says {
				if !strings.Contains(line, what) {
					t.Errorf("no %q in: %s", what, line)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	got := runWatchproxy(t, "version")
	if got.Code != 0 || got.Stderr != "" || !strings.HasPrefix(got.Stdout, "watchproxy ") || strings.Count(got.Stdout, "\n") != 1 {
		t.Errorf("%+v", got)
	}
}

// The output of config defaults is valid. Loading it gives the same defaults.
func TestConfigDefaults(t *testing.T) {
	defaults := runWatchproxy(t, "config", "defaults")
	if defaults.Code != 0 || defaults.Stderr != "" {
		t.Fatalf("%+v", defaults)
	}
	path := file(t, defaults.Stdout)
	if got := runWatchproxy(t, "config", "validate", path); got.Code != 0 || got.Stdout != path+" is valid\n" {
		t.Errorf("%+v", got)
	}
}

func TestConfigValidate(t *testing.T) {
	wrong := file(t, header+"listen: nonsense\nlogLevel: loud\n")
	got := runWatchproxy(t, "config", "validate", wrong)
	if got.Code != 1 || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 3 {
		t.Errorf("%+v", got)
	}
	for _, what := range []string{wrong + ":3: listen: ", wrong + ":4: logLevel: ", "tls: "} {
		if !strings.Contains(got.Stderr, what) {
			t.Errorf("no %q in %s", what, got.Stderr)
		}
	}
	if got := runWatchproxy(t, "config", "validate"); got.Code != 2 || strings.Count(got.Stderr, "\n") != 1 {
		t.Errorf("without a file: %+v", got)
	}
	for _, args := range [][]string{{"nonsense"}, {"config", "nonsense"}} {
		if got := runWatchproxy(t, args...); got.Code != 2 || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr, `"nonsense"`) {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
