package proxy

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Stale reads wait for a slot. Watches have separate slots, and a user can hold at most half of
// them. No slot is given back twice.
func TestStaleSlots(t *testing.T) {
	for verb, most := range map[string]int{"get": fallbackReads, "watch": fallbackWatches} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions()
			o.Access = &access.Access{}
			s := NewServer(forwardsAll{}, nil, newStore(t, 1<<20), o, metrics.New(prometheus.NewRegistry()), zap.NewNop())
			defer s.life.cut()
			admit := func(name string) (leave func(), refusal *exchange.Response) {
				req := &exchange.Request{Method: http.MethodGet, Header: http.Header{}, Identity: &access.Caller{User: &user.DefaultInfo{Name: name}}}
				return s.admitFallback(t.Context(), req, verb)
			}
			var alice []func()
			for range most / 2 {
				leave, refusal := admit("alice")
				if refusal != nil {
					t.Fatal("refused, and there was room")
				}
				alice = append(alice, leave)
			}
			began := time.Now()
			if _, refusal := admit("alice"); refusal == nil || time.Since(began) != fallbackWait || refusal.Status != http.StatusTooManyRequests {
				t.Errorf("%v after %s", refusal, time.Since(began))
			}
			bob, refusal := admit("bob")
			if refusal != nil {
				t.Fatal("one user took the slots of another")
			}
			time.AfterFunc(time.Second, func() {
				alice[0]()
				alice[1]()
			})
			if again, refusal := admit("alice"); refusal != nil {
				t.Error("refused, and more slots are free than the user holds")
			} else {
				again()
			}
			for _, leave := range append(alice, bob, bob) {
				leave()
			}
			if n := s.queues.fallbackReads.Taken() + s.queues.fallbackWatches.Taken(); n != 0 {
				t.Errorf("%d slots are left over", n)
			}
		})
	}
}

// provenFeed is a feed that needs two seconds to prove that its cache is up to date.
type provenFeed struct{ *rawFeed }

// Fresh implements Feed.
func (f provenFeed) Fresh(ctx context.Context, _ bool) (watchcache.Snapshot, error) {
	select {
	case <-time.After(2 * time.Second):
		return f.cache.Snapshot()
	case <-ctx.Done():
		return watchcache.Snapshot{}, ctx.Err()
	}
}

// A client's timeout limits the wait for the proof, except that of a watch, as for upstream.
// Upstream itself answers a read that is over at once.
func TestTimeoutOfClient(t *testing.T) {
	for query, want := range map[string]string{
		"?timeout=3s": "cache", "?timeout=1s": "upstream", "?timeout=1ns": "upstream", "?timeout=-1s": "cache",
		"?watch=1&timeoutSeconds=1&timeout=1s": "cache", "?watch=1&timeoutSeconds=1&timeout=1ns": "upstream",
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := cachetest.ConfigMaps(t, 1)
			s, l := serveFeeds(t, oneFeed{feed: provenFeed{&rawFeed{c}}}, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "upstream")
			}, testLimits(), nil)
			_, body := clientTo(t, l, "h2").get(t, "/api/v1/namespaces/a/configmaps"+query)
			if got := map[bool]string{true: "upstream", false: "cache"}[body == "upstream"]; got != want {
				t.Errorf("%s: answered by the %s, want the %s", query, got, want)
			}
			if n := s.queues.fallbackReads.Taken() + s.queues.fallbackWatches.Taken(); n != 0 {
				t.Errorf("%s: %d slots are left over", query, n)
			}
		})
	}
}
