//go:build verify

package access

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// shortLived are the settings of a proxy that trusts a decision for a second only.
const shortLived = `
authentication: {webhook: {cacheTTL: 1s}}
authorization: {webhook: {cacheAuthorizedTTL: 1s, cacheUnauthorizedTTL: 1s}, watchRecheckInterval: 1s}
`

// soon is the time after which credentials end by themselves. Before that, the caller joins.
const soon = 30 * time.Second

const (
	leaversPath  = "/api/v1/namespaces/" + teamA + "/configmaps"
	leaversList  = leaversPath + "?resourceVersion=0"
	leaversWatch = leaversPath + "?watch=1&resourceVersion=0"
)

// joins waits until the apiserver allows the caller, and opens a watch that the cache answers.
func (f *front) joins(t *testing.T, w *world, c *caller) (watch *stream) {
	t.Helper()
	cluster.Eventually(t, c.name+" has its right", func() bool { return w.server.must(t, c, request{target: leaversList}).status == ok })
	cluster.Eventually(t, c.name+" is answered from the cache", func() bool {
		before := f.fromCache(t)
		return f.must(t, c, request{target: leaversList}).status == ok && f.fromCache(t) > before
	})
	return f.watch(t, c, leaversWatch)
}

// leaves waits until the apiserver refuses the caller. Then the proxy must refuse the caller, too, and
// end its watch.
func (f *front) leaves(t *testing.T, w *world, c *caller, watch *stream, status int) {
	t.Helper()
	for _, s := range []*server{w.server, f.server} {
		cluster.Within(t, limit+soon, s.name+" refuses "+c.name, func() bool { return s.must(t, c, request{target: leaversList}).status == status })
	}
	if err := compare(w.server.must(t, c, request{target: leaversList}), f.must(t, c, request{target: leaversList})); err != nil {
		t.Errorf("%s: %v", c.name, err)
	}
	cluster.Within(t, limit, "the watch of "+c.name+" ends", watch.hasEnded)
}

// When a right is removed, cached reads and open watches end. Other callers are not affected.
func TestRevocation(t *testing.T) {
	w := sharedWorld(t)
	f := w.front(t, proxyUser, shortLived)
	stays := f.joins(t, w, w.callers["reader"])
	unbind := func(name string) func() error {
		return func() error {
			return w.admin.RbacV1().RoleBindings(teamA).Delete(t.Context(), name, metav1.DeleteOptions{})
		}
	}
	unbindDelegate := func() error {
		return w.admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), "delegates", metav1.DeleteOptions{})
	}
	nothing := func() error { return nil } // the access ends by itself
	account := w.requestToken(t, teamB, "leaver")
	leavers := []struct {
		name   string
		caller func(*testing.T) caller
		leave  func() error
		status int
	}{
		{"binding", func(*testing.T) caller { return caller{token: tokenOf("leaver")} }, unbind("leaver"), forbidden},
		{"binding of a certificate", func(t *testing.T) caller { return caller{cert: w.ca.SignT(t, time.Hour, "carl")} }, unbind("carl"), forbidden},
		{"service account", func(*testing.T) caller { return caller{token: account} }, func() error {
			return w.admin.CoreV1().ServiceAccounts(teamB).Delete(t.Context(), "leaver", metav1.DeleteOptions{})
		}, unknown},
		{"right to impersonate", func(*testing.T) caller { return *(caller{token: tokenOf("delegate")}).as(impersonating("reader")) }, unbindDelegate, forbidden},
		// The apiserver accepts a token for one minute after it has expired.
		{"end of a token", func(t *testing.T) caller { return caller{token: w.robotToken(t, w.saKey, soon-time.Minute)} }, nothing, unknown},
		{"end of a certificate", func(t *testing.T) caller { return caller{cert: w.ca.SignT(t, soon, "carla", certified)} }, nothing, unknown},
	}
	t.Run("leavers", func(t *testing.T) {
		for _, l := range leavers {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				c := l.caller(t)
				c.name = l.name
				watch := f.joins(t, w, &c)
				cluster.MustT(t, l.leave())
				f.leaves(t, w, &c, watch, l.status)
			})
		}
	})
	if got := f.must(t, w.callers["reader"], request{target: leaversList}); got.status != ok || stays.hasEnded() {
		t.Errorf("a caller that has lost nothing gets %d; its watch has ended: %t", got.status, stays.hasEnded())
	}
}

// stream is an open watch.
type stream struct {
	ended <-chan struct{} // closed when the watch has ended
}

// watch opens a watch that is closed at the end of the test.
func (s *server) watch(t *testing.T, c *caller, target string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := s.send(ctx, c, request{target: target})
	cluster.MustT(t, err)
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		t.Fatalf("%s: %s: watch %s: %s", s.name, c.name, target, resp.Status)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return &stream{ended}
}

// hasEnded reports whether the watch has ended by itself.
func (s *stream) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
