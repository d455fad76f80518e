package check

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
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

// server behaves like a proxy that accepts one token. Its first responses are 503. It writes its log
// to failures.
func server(t *testing.T, unready int64, failures io.Writer) (url, ca string) {
	t.Helper()
	var asked atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	s.Config.ErrorLog = log.New(failures, "", 0)
	s.StartTLS()
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

func run(ctx context.Context, args ...string) (string, error) {
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestCheck(t *testing.T) {
	url, ca := server(t, 1, io.Discard)
	out, err := run(t.Context(), "--server", url, "--certificate-authority", ca, "--token-file", file(t, "good"), "/api/v1/pods?limit=1")
	if err != nil || !strings.Contains(out, "the client is jane") || !strings.Contains(out, "/api/v1/pods?limit=1: 47 bytes") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRefusals(t *testing.T) {
	url, ca := server(t, 0, io.Discard)
	token := file(t, "good")
	plain := "http://" + strings.TrimPrefix(url, "https://")
	for want, args := range map[string][]string{
		"Unauthorized":     {"--server", url, "--certificate-authority", ca, "--token-file", file(t, "bad")},
		"get /api/v1/nod":  {"--server", url, "--certificate-authority", ca, "--token-file", token, "/api/v1/nodes"},
		"no such file":     {"--server", url, "--certificate-authority", ca, "--token-file", token + ".missing"},
		"over https only":  {"--server", plain, "--token-file", token, "--timeout", "1ms"},
		"begins with /":    {"--server", url, "pods"},
		`"server" not set`: {},
	} {
		if out, err := run(t.Context(), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s\n%s", args, err, want, out)
		}
	}
}

// again ends a context at the second line that is written to it.
type again struct {
	lines atomic.Int64
	end   context.CancelFunc
}

func (a *again) Write(line []byte) (int, error) {
	if a.lines.Add(1) == 2 {
		a.end()
	}
	return len(line), nil
}

// check tries again after a failed handshake, because the proxy may be about to publish its CA. At
// the end it returns the reason.
func TestFailedHandshakes(t *testing.T) {
	t.Parallel()
	token := file(t, "good")
	for want, args := range map[string]func(ca string) []string{
		"certificate": func(string) []string { return nil },
		"no success":  func(ca string) []string { return []string{"--certificate-authority", ca + ".missing"} },
		"other.example": func(ca string) []string {
			return []string{"--certificate-authority", ca, "--tls-server-name", "other.example"}
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			url, ca := server(t, 0, &again{end: cancel})
			out, err := run(ctx, append(args(ca), "--server", url, "--token-file", token)...)
			if ctx.Err() == nil {
				t.Error("check did not try again")
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s\n%s", err, want, out)
			}
		})
	}
}
