package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// judging is an access that takes bearer tokens for user names. It allows the user "reader"
// everything, denies the user "stranger" everything, and cannot decide about other users.
func judging(t *testing.T) *access.Access {
	t.Helper()
	reviewer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			var review authenticationv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: review.Spec.Token}}
			answer = review
		} else {
			var review authorizationv1.SubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			switch review.Spec.User {
			case "reader":
				review.Status.Allowed = true
			case "stranger":
			default:
				w.WriteHeader(http.StatusForbidden) // a status that is not retried
				return
			}
			answer = review
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(reviewer.Close)
	config := &rest.Config{Host: reviewer.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
	a, err := access.New(config, nil, access.Options{TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Second}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The cache answers a read only if upstream allows the read. If upstream denies it, the answer has
// no data. If upstream does not decide, the read is forwarded.
func TestReadsAreAuthorized(t *testing.T) {
	c, _ := cachetest.ConfigMaps(t, 3)
	_, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "upstream's answer")
	}, testLimits(), judging(t))
	client := http2To(t)
	const path = "/api/v1/namespaces/a/configmaps"
	for what, target := range map[string]string{
		"get": path + "/c-000000?resourceVersion=0", "list": path + "?resourceVersion=0",
		"watch": path + "?watch=1&resourceVersion=0&timeoutSeconds=1",
	} {
		for user, want := range map[string]struct {
			code int
			says string
		}{
			"reader": {http.StatusOK, "c-000000"}, "stranger": {http.StatusForbidden, "is forbidden"}, "other": {http.StatusOK, "upstream's answer"},
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address.String()+target, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+user)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			leaks := user != "reader" && strings.Contains(string(body), `"uid":"u"`)
			if err != nil || resp.StatusCode != want.code || !strings.Contains(string(body), want.says) || leaks {
				t.Errorf("%s by %s: %s, %.200q, %v", what, user, resp.Status, body, err)
			}
		}
	}
}
