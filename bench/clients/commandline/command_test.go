package commandline

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// runWatchproxy runs a command that ends by itself.
func runWatchproxy(t *testing.T, args ...string) clients.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Limit)
	defer cancel()
	binary, err := cluster.BuildProxy(t.Context(), true)
	cluster.MustT(t, err)
	return clients.Finish(t, clients.Command(ctx, t.TempDir(), binary, args...))
}

// file writes a temporary file.
func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	cluster.MustT(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// If the proxy cannot start because of its surroundings, it reports the error in one line and ends
// with code 1. Tests in cmd/watchproxy and config cover errors in the command line and the
// configuration.
func TestServeRefusesToStart(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	cluster.MustT(t, err)
	defer taken.Close() // it accepts connections but never answers
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	address := taken.Addr().String()
	good := w.API.Kubeconfig
	for name, test := range map[string]struct {
		args []string
		says []string
	}{
		"broken kubeconfig":       {[]string{"--kubeconfig", file(t, "nonsense")}, []string{"kubeconfig"}},
		"upstream is not there":   {[]string{"--kubeconfig", cluster.KubeconfigT(t, gone.URL, nil, "")}, []string{gone.URL, "refused"}},
		"upstream says nothing":   {[]string{"--kubeconfig", cluster.KubeconfigT(t, "http://"+address, nil, "")}, []string{address, "10s"}},
		"upstream is another":     {[]string{"--kubeconfig", cluster.KubeconfigT(t, other.URL, nil, "")}, []string{other.URL, "404"}},
		"upstream has no address": {[]string{"--kubeconfig", cluster.KubeconfigT(t, "http://nonsense.invalid:1", nil, "")}, []string{"nonsense.invalid"}},
		"upstream is unknown":     {[]string{"--kubeconfig", cluster.KubeconfigT(t, w.API.URL, nil, "")}, []string{w.API.URL, "certificate"}},
		"bad credentials":         {[]string{"--kubeconfig", w.API.KubeconfigT(t, w.API.URL, "nonsense")}, []string{w.API.URL, "401", "credentials"}},
		"port in use":             {[]string{"--kubeconfig", good, "--listen", address, "--admin-listen", "127.0.0.1:0"}, []string{"listen", address, "in use"}},
		"admin port in use":       {[]string{"--kubeconfig", good, "--listen", "127.0.0.1:0", "--admin-listen", address}, []string{"adminListen", address, "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := runWatchproxy(t, append([]string{"serve"}, test.args...)...)
			if got.Code != 1 || got.Stdout != "" {
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
