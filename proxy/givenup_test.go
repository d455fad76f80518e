package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Users share connections upstream, and kube-apiserver ends a connection on which too many requests
// were reset. A user who gives up more requests than that is refused, and others are not.
func TestGivenUpRequestsAreBounded(t *testing.T) {
	const upload = "/api/v1/namespaces/a/pods/p/proxy/"
	for _, path := range []string{"/api/v1/namespaces/a/configmaps/c", podsPath + "?watch=1", "/api/v1/namespaces/a/pods/p/log", upload} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			o := testOptions()
			o.Access = judging(t)
			_, l := serveTo(t, forwardsAll{}, func(_ http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			}, o)
			client := clientTo(t, l, "h2")
			reset := func(user string) (code int) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				answered := make(chan struct{})
				method, body := http.MethodGet, io.Reader(nil)
				if path == upload {
					rest, end := io.Pipe() // nothing comes
					context.AfterFunc(ctx, func() { _ = end.CloseWithError(ctx.Err()) })
					method, body = http.MethodPost, io.MultiReader(strings.NewReader("a"), rest)
				}
				go func() {
					defer close(answered)
					code, _ = client.send(ctx, user, method, path, body)
				}()
				synctest.Wait()
				cancel()
				<-answered
				synctest.Wait()
				return code
			}
			const resets = 300
			refused := int64(0)
			for range resets {
				if reset("reader1") == http.StatusTooManyRequests {
					refused++
				}
			}
			if asked.Load() != givenUpMost/2 || asked.Load()+refused != resets {
				t.Errorf("%s: of %d requests, upstream got %d, and %d were refused", path, resets, asked.Load(), refused)
			}
			if code := reset("reader2"); code != 0 || asked.Load() != givenUpMost/2+1 {
				t.Errorf("%s: another user got %d", path, code)
			}
			time.Sleep(givenUpTime)
			synctest.Wait()
			if code := reset("reader1"); code != 0 || asked.Load() != givenUpMost/2+2 {
				t.Errorf("%s: after %s, the user still got %d", path, givenUpTime, code)
			}
		})
	}
}
