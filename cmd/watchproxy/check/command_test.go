package check

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// client-go's cache of transports keeps idle connections.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("internal/poll.runtime_pollWait"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// server behaves like a proxy that accepts one token. Its first responses are 503.
func server(t *testing.T, unready int64) (url, ca string) {
	t.Helper()
	var asked atomic.Int64
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := func(code int, reason string) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, reason)
		}
		switch {
		case asked.Add(1) <= unready:
			status(http.StatusServiceUnavailable, "ServiceUnavailable")
		case r.Header.Get("Authorization") != "Bearer good":
			status(http.StatusUnauthorized, "Unauthorized")
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"jane"}}}`)
		case r.URL.Path == "/api/v1/pods" && r.URL.RawQuery == "limit=1":
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
		default:
			status(http.StatusForbidden, "Forbidden")
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, file(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestCheck(t *testing.T) {
	url, ca := server(t, 1)
	out, err := run(t, "--server", url, "--certificate-authority", ca, "--token-file", file(t, "good"), "/api/v1/pods?limit=1")
	if err != nil || !strings.Contains(out, "the client is jane") || !strings.Contains(out, "/api/v1/pods?limit=1: 47 bytes") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRefusals(t *testing.T) {
	url, ca := server(t, 0)
	token := file(t, "good")
	plain := "http://" + strings.TrimPrefix(url, "https://")
	for want, args := range map[string][]string{
		"certificate":      {"--server", url, "--token-file", token, "--timeout", "2s"},
		"no success":       {"--server", url, "--certificate-authority", ca + ".missing", "--token-file", token, "--timeout", "2s"},
		"Unauthorized":     {"--server", url, "--certificate-authority", ca, "--token-file", file(t, "bad")},
		"get /api/v1/nod":  {"--server", url, "--certificate-authority", ca, "--token-file", token, "/api/v1/nodes"},
		"other.example":    {"--server", url, "--certificate-authority", ca, "--token-file", token, "--tls-server-name", "other.example", "--timeout", "2s"},
		"no such file":     {"--server", url, "--certificate-authority", ca, "--token-file", token + ".missing"},
		"over https only":  {"--server", plain, "--token-file", token, "--timeout", "1ms"},
		"begins with /":    {"--server", url, "pods"},
		`"server" not set`: {},
	} {
		if out, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s\n%s", args, err, want, out)
		}
	}
}
