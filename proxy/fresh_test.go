package proxy

import (
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
)

// Stale reads wait for a slot. Watches have separate slots, and a user can hold at most half of
// them. No slot is given back twice.
func TestStaleSlots(t *testing.T) {
	for verb, most := range map[string]int{"get": fallbackReads, "watch": fallbackWatches} {
		synctest.Test(t, func(t *testing.T) {
			o := testOptions()
			o.Access = &access.Access{}
			s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, o)
			defer s.life.Cut()
			admit := func(name string) (leave func(), err error) {
				req := &exchange.Request{Method: http.MethodGet, Route: exchange.Route{Verb: verb}, Header: http.Header{}, Identity: &access.Caller{User: &user.DefaultInfo{Name: name}}}
				return s.limits.admitFallback(t.Context(), req, fallbackWait)
			}
			var alice []func()
			for range most / 2 {
				leave, err := admit("alice")
				if err != nil {
					t.Fatal("refused, and there was room")
				}
				alice = append(alice, leave)
			}
			began := time.Now()
			if _, err := admit("alice"); err == nil || time.Since(began) != fallbackWait {
				t.Errorf("%v after %s", err, time.Since(began))
			}
			bob, err := admit("bob")
			if err != nil {
				t.Fatal("one user took the slots of another")
			}
			time.AfterFunc(time.Second, func() {
				alice[0]()
				alice[1]()
			})
			if again, err := admit("alice"); err != nil {
				t.Error("refused, and more slots are free than the user holds")
			} else {
				again()
			}
			for _, leave := range append(alice, bob, bob) {
				leave()
			}
			if n := s.limits.queues.fallbackReads.Taken() + s.limits.queues.fallbackWatches.Taken(); n != 0 {
				t.Errorf("%d slots are left over", n)
			}
		})
	}
}
