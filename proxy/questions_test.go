package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// newQuestion returns the target of a read about which no other question's decision tells anything:
// it has its own namespace, name, selector or path.
func newQuestion(i int) string {
	return fmt.Sprintf([]string{
		"/api/v1/namespaces/n%d/configmaps?resourceVersion=0",
		"/api/v1/namespaces/a/configmaps/c-%06d?resourceVersion=0",
		"/api/v1/configmaps?resourceVersion=0&labelSelector=x%d",
		"/api/v1/configmaps?watch=1&resourceVersion=0&fieldSelector=metadata.name%%3Dx%d",
		"/openapi/v3/apis/x%d",
	}[i%5], i)
}

// A user without rights asks new questions all the time, so no remembered decision answers them. Its
// reviews use half of the slots upstream, other users are answered meanwhile, and its decisions push
// out no decision of another user. Nothing from the cache reaches it.
func TestFloodOfQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			crowd, later, atOnce = 100, 30, 10
			reviewsMost          = 25        // a user's reviews upstream, as package access documents
			reason               = 600 << 10 // so that few decisions exceed the limit of remembered bytes
			ttl                  = time.Minute
			cached               = "/api/v1/namespaces/a/configmaps/c-000000?resourceVersion=0"
		)
		gate := make(chan struct{})
		var flooding, most, ofReader atomic.Int64
		by := judgedBy(t, prometheus.NewRegistry(), ttl, func(review *authorizationv1.SubjectAccessReview) bool {
			if review.Spec.User == "reader" {
				review.Status.Allowed = true
				ofReader.Add(1)
				return true
			}
			for n := flooding.Add(1); ; {
				if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
					break
				}
			}
			defer flooding.Add(-1)
			<-gate
			review.Status.Reason = strings.Repeat("r", reason)
			return true
		})
		c, _ := cachetest.ConfigMaps(t, crowd)
		_, address := serveFeeds(t, oneFeed{feed: &rawFeed{c}}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer stranger" {
				w.WriteHeader(http.StatusForbidden)
			}
			_, _ = io.WriteString(w, "upstream's answer")
		}, testLimits(), by)
		stranger, reader := clientTo(t, address, "h2"), clientTo(t, address, "h2")
		asks := func(i int) {
			target := newQuestion(i)
			if resp, body := stranger.get(t, target, credentials("stranger")...); resp.StatusCode != http.StatusForbidden || strings.Contains(body, `"uid":"u"`) {
				t.Errorf("%s: %s %.200s", target, resp.Status, body)
			}
		}
		reads := func(when string) {
			if resp, body := reader.get(t, cached, credentials("reader")...); resp.StatusCode != http.StatusOK || !strings.Contains(body, `"uid":"u"`) {
				t.Errorf("%s, another user's read: %s %.200s", when, resp.Status, body)
			}
			if resp, body := reader.get(t, "/version", credentials("reader")...); body != "upstream's answer" {
				t.Errorf("%s, another user's forwarded read: %s %.200s", when, resp.Status, body)
			}
		}

		var asking sync.WaitGroup
		for i := range crowd {
			asking.Go(func() { asks(i) })
		}
		synctest.Wait()
		reads("while upstream decides nothing")
		if n := flooding.Load(); n != reviewsMost {
			t.Errorf("upstream has %d reviews of a user who sends %d questions", n, crowd)
		}
		close(gate)
		asking.Wait()
		numbers := make(chan int)
		for range atOnce {
			asking.Go(func() {
				for i := range numbers {
					asks(i)
				}
			})
		}
		for i := range later {
			numbers <- crowd + i
		}
		close(numbers)
		asking.Wait()
		reads("after the flood")
		if n := most.Load(); n > reviewsMost {
			t.Errorf("upstream had %d reviews at a time", n)
		}
		if n := ofReader.Load(); n != 1 {
			t.Errorf("another user's read was reviewed %d times", n)
		}
	})
}
