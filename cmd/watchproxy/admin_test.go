package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// reviewer is an apiserver with two users: good, who may read /metrics, and poor.
func reviewer(t *testing.T) *httptest.Server {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any = struct{}{}
		switch {
		case r.URL.Path == "/version" || r.URL.Path == "/readyz":
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			var review authenticationv1.TokenReview
			decode(t, r.Body, &review)
			if token := review.Spec.Token; token == "good" || token == "poor" {
				review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: token}}
			}
			answer = review
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			answer = authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
		case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
			var review authorizationv1.SubjectAccessReview
			decode(t, r.Body, &review)
			about := review.Spec.NonResourceAttributes
			review.Status.Allowed = review.Spec.User == "good" && about != nil && *about == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
			answer = review
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": http.StatusNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(api.Close)
	return api
}

// decode decodes a review, which client-go may send in protobuf.
func decode(t *testing.T, body io.Reader, review runtime.Object) {
	t.Helper()
	data, err := io.ReadAll(body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(data, nil, review)
	}
	if err != nil {
		t.Error(err)
	}
}

// ask sends a request and returns the status code and the body.
func ask(t *testing.T, client *http.Client, method, url, body string, header ...string) (code int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// A profile that is not complete does not turn the end of the proxy into a failure.
func TestEndsDuringAProfile(t *testing.T) {
	t.Parallel()
	program := start(t, reviewer(t).URL, os.Stderr)
	_, admin := program.ready(t)
	resp, err := http.Get(admin + "/debug/pprof/trace?seconds=600") // returns once the profile has begun
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	program.end(t)
}
