//go:build verify

package proxy

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The server passes all cases of h2spec for RFC 9113 and RFC 7541, including the strict cases.
func TestH2Spec(t *testing.T) {
	_, address := serveSocket(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "h2spec wants an answer of more than a few bytes")
	}, Options{Limits: testLimits(), AnyHost: true, TLS: selfSigned()})
	host, port, err := net.SplitHostPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join("..", ".tools", "go.mod")
	out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+tools, "h2spec",
		"--tls", "--insecure", "--strict", "--host", host, "--port", port, "--path", "/version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), " 0 skipped, 0 failed") {
		t.Errorf("%v\n%s", err, out)
	}
}
