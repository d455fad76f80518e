package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// The headers of a client's trace reach upstream unchanged with a forwarded request. The proxy's own
// requests, such as reviews and discovery, do not have them.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	trace := map[string]string{
		"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"Tracestate":  "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
		"Baggage":     "userId=alice,isProduction=false",
	}
	const marker = "X-Client"
	var own atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := r.Header.Get(marker) != ""
		if !client {
			own.Add(1)
		}
		for name, value := range trace {
			want := map[bool]string{true: value}[client]
			if got := strings.Join(r.Header.Values(name), "; "); got != want {
				t.Errorf("%s %s has %s: %q instead of %q", r.Method, r.URL, name, got, want)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		var answer any = map[string]any{"kind": "Status", "apiVersion": "v1"}
		switch {
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			answer = authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "good"}}}
		case strings.HasSuffix(r.URL.Path, "accessreviews"):
			answer = authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
		case !client && r.URL.Path != "/version" && r.URL.Path != "/readyz":
			w.WriteHeader(http.StatusNotFound)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(api.Close)
	args, certificate := servesTLS(t)
	url, _ := start(t, api.URL, os.Stderr, append(args, "--authentication", "delegated")...).ready(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	for protocol, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: http2}
		client := &http.Client{Transport: transport, Timeout: time.Minute}
		for _, target := range []string{"/api/v1/namespaces/a/configmaps?resourceVersion=0", "/api/v1/namespaces/a/pods/p/status"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer good")
			req.Header.Set(marker, protocol)
			for name, value := range trace {
				req.Header.Set(name, value)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.Proto != protocol || resp.StatusCode != http.StatusOK {
				t.Errorf("%s %s: %s %d", protocol, target, resp.Proto, resp.StatusCode)
			}
		}
		transport.CloseIdleConnections()
	}
	if own.Load() == 0 {
		t.Error("the proxy has asked nothing itself: the test does not test")
	}
}
