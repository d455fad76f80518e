package admin

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page loads only its own files, and each file has the right Content-Type.
func TestPage(t *testing.T) {
	admin := newAdmin(Options{Status: noStatus, Everybody: true})
	const svg = "http://www.w3.org/2000/svg" // a name, not an address
	kinds := map[string]string{"": "text/html", ".css": "text/css", ".js": "text/javascript"}
	get := func(method, path string) *httptest.ResponseRecorder {
		return visit(t, admin, nil, false, method, path, "")
	}
	for path := range pageFiles {
		kind := kinds[filepath.Ext(path)]
		w := get(http.MethodGet, path)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		policy := w.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if away := regexp.MustCompile(`(?:https?:)?//[a-z]\S*`).FindString(strings.ReplaceAll(w.Body.String(), svg, "")); away != "" {
			t.Errorf("%s refers to %s", path, away)
		}
		if strings.Contains(w.Body.String(), " style=") || strings.Contains(w.Body.String(), " onclick=") {
			t.Errorf("%s has inline styles or handlers, which the policy forbids", path)
		}
	}
	if files, err := page.ReadDir("page"); err != nil || len(files) != len(pageFiles) {
		t.Errorf("%d of %d files are served, %v", len(pageFiles), len(files), err)
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
