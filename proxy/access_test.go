package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/access"
)

// judging returns an access whose bearer tokens are user names. It allows users whose names begin
// with "reader" everything, denies the user "stranger" everything, and cannot decide about other
// users.
func judging(t *testing.T) *access.Access {
	t.Helper()
	return judgedBy(t, prometheus.NewRegistry(), time.Second, func(review *authorizationv1.SubjectAccessReview) (decided bool) {
		review.Status.Allowed = strings.HasPrefix(review.Spec.User, "reader")
		return review.Status.Allowed || review.Spec.User == "stranger"
	})
}

// judgedBy returns an access whose bearer tokens are user names. It remembers refusals for denyTTL.
// review answers reviews of access, and reports whether it can decide.
func judgedBy(t *testing.T, registry *prometheus.Registry, denyTTL time.Duration, review func(*authorizationv1.SubjectAccessReview) (decided bool)) *access.Access {
	t.Helper()
	config := behind(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			var asked authenticationv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
				t.Error(err)
			}
			asked.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: asked.Spec.Token}}
			answer = asked
		} else {
			var asked authorizationv1.SubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
				t.Error(err)
			}
			if !review(&asked) {
				w.WriteHeader(http.StatusForbidden) // this status is not retried
				return
			}
			answer = asked
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	config.ContentConfig = rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}
	a, err := access.New(config, nil, access.Options{TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: denyTTL}, registry)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The cache answers a read only if upstream allows the read. If upstream denies it, the response
// has no data. If upstream does not decide, the read is forwarded. If the client impersonates a
// user, upstream must also allow the impersonation, and the read has that user's rights.
func TestReadsAreAuthorized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		_, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "upstream's answer")
		}, testLimits(), judging(t))
		client := clientTo(t, address, "h2")
		const path = "/api/v1/namespaces/a/configmaps"
		for what, target := range map[string]string{
			"get": path + "/c-000000?resourceVersion=0", "list": path + "?resourceVersion=0",
			"watch": path + "?watch=1&resourceVersion=0&timeoutSeconds=1",
		} {
			const data, refused, forwarded = "c-000000", `User \"stranger\" cannot`, "upstream's answer"
			for user, want := range map[string]struct {
				code int
				says string
			}{
				"reader": {http.StatusOK, data}, "stranger": {http.StatusForbidden, refused}, "other": {http.StatusOK, forwarded},
				"reader as reader2": {http.StatusOK, data}, "reader as stranger": {http.StatusForbidden, refused},
				"reader as other": {http.StatusOK, forwarded}, "stranger as reader": {http.StatusOK, forwarded},
				"other as reader": {http.StatusOK, forwarded}, "reader as system:node:reader": {http.StatusOK, forwarded},
			} {
				resp, body := client.get(t, target, credentials(user)...)
				leaks := want.says != data && strings.Contains(body, `"uid":"u"`)
				if resp.StatusCode != want.code || !strings.Contains(body, want.says) || leaks {
					t.Errorf("%s by %s: %s, %.200q", what, user, resp.Status, body)
				}
			}
		}
	})
}

// credentials returns the header of a user such as "sender" or "sender as other".
func credentials(user string) []string {
	token, as, impersonates := strings.Cut(user, " as ")
	header := []string{"Authorization", "Bearer " + token}
	if impersonates {
		header = append(header, "Impersonate-User", as)
	}
	return header
}

// A watch counts as its sender's watch, whichever user the sender impersonates.
func TestImpersonatedWatchesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 3)
		limits := testLimits()
		limits.UserWatches = 1
		_, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, http.NotFound, limits, judging(t))
		client := clientTo(t, address, "h2")
		for i, test := range []struct {
			user string
			want int
		}{
			{"reader as reader1", http.StatusOK},
			{"reader as reader2", http.StatusTooManyRequests},
			{"reader1", http.StatusOK},
			{"reader1", http.StatusTooManyRequests},
		} {
			resp := client.open(t, "/api/v1/configmaps?watch=1&resourceVersion=0", credentials(test.user)...)
			if resp.StatusCode != test.want {
				t.Errorf("watch %d: %s", i, resp.Status)
			}
		}
	})
}
