package status

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// clientServer behaves like a proxy that accepts one token. Its first responses are 503. It writes its
// log to failures.
func clientServer(t *testing.T, unready int64, failures io.Writer) (url, ca string) {
	t.Helper()
	var asked atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case asked.Add(1) <= unready:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case r.Header.Get("Authorization") != "Bearer good":
			http.Error(w, "who?", http.StatusUnauthorized)
		case r.URL.String() != "/api/v1/pods?limit=1":
			http.Error(w, "not yours", http.StatusForbidden)
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

// A client verifies the proxy's certificate and sends its token. It tries again while the proxy starts.
func TestCheckAsClient(t *testing.T) {
	t.Parallel()
	url, ca := clientServer(t, 1, io.Discard)
	var out strings.Builder
	if err := execute(t.Context(), &out, "--check", "--as-client", url+"/api/v1/pods?limit=1", "--certificate-authority", ca, "--token-file", file(t, "good")); err != nil || out.String() != "healthy\n" {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestCheckAsClientRefusals(t *testing.T) {
	t.Parallel()
	url, ca := clientServer(t, 0, io.Discard)
	token := file(t, "good")
	for want, args := range map[string][]string{
		"401 Unauthorized: who?":   {url, "--certificate-authority", ca, "--token-file", file(t, "bad")},
		"403 Forbidden: not yours": {url + "/api/v1/nodes", "--certificate-authority", ca, "--token-file", token},
		"no such file":             {url, "--certificate-authority", ca, "--token-file", token + ".missing"},
		"must be an https URL":     {"http://" + strings.TrimPrefix(url, "https://"), "--token-file", token},
		"[admin as-client]":        {url, "--admin", url},
	} {
		if err := execute(t.Context(), io.Discard, append([]string{"--check", "--as-client"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", args, err, want)
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

// A client tries again after a failed handshake, because the proxy may be about to publish its CA. At
// the end, the error has the reason.
func TestCheckAsClientVerifies(t *testing.T) {
	t.Parallel()
	token := file(t, "good")
	for name, test := range map[string]struct {
		args func(ca string) []string
		want string
	}{
		"no CA":        {func(string) []string { return nil }, "certificate"},
		"CA not there": {func(ca string) []string { return []string{"--certificate-authority", ca + ".missing"} }, "no success"},
		"another name": {func(ca string) []string {
			return []string{"--certificate-authority", ca, "--tls-server-name", "other.example"}
		}, "other.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			url, ca := clientServer(t, 0, &again{end: cancel})
			err := execute(ctx, io.Discard, append(test.args(ca), "--check", "--as-client", url, "--token-file", token)...)
			if ctx.Err() == nil {
				t.Error("it did not try again")
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}
