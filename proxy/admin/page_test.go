package admin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// The page loads only its own files, and each file has the right Content-Type.
func TestPage(t *testing.T) {
	registry := prometheus.NewRegistry()
	admin := New(registry, metrics.New(registry), func() (any, error) { return nil, errors.New("no figures") }, false)
	get := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		admin.Server().Handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, http.NoBody))
		return w
	}
	for path, kind := range map[string]string{"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"} {
		w := get(http.MethodGet, path)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		policy := w.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if away := regexp.MustCompile(`(?:https?:)?//[a-z]\S*`).FindString(w.Body.String()); away != "" {
			t.Errorf("%s refers to %s", path, away)
		}
		if strings.Contains(w.Body.String(), " style=") || strings.Contains(w.Body.String(), " onclick=") {
			t.Errorf("%s has inline styles or handlers, which the policy forbids", path)
		}
	}
	for path, want := range map[string]int{"/index.html": 404, "/page/": 404, "/api/v1/pods": 404, "/status": 500} {
		if w := get(http.MethodGet, path); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	if w := get(http.MethodPost, "/"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}
