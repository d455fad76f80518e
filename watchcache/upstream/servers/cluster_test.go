package servers

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestServerOfAnotherClusterIsNeverAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		b.cluster.Store(2)
		_, way := serversOf(t, a, b)
		a.stop()
		if got, err := says(t, way, http.MethodGet, ""); err == nil {
			t.Errorf("%s was asked", got)
		}
	})
}

// The last remaining server belongs to another cluster because its address was reassigned.
func TestTheLastServerBecomesForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		b.ready.Store(false)
		checked(t, s, 1, func() bool { return testutil.ToFloat64(s.metrics.usable.WithLabelValues(b.name)) == 0 })
		wantAnswer(t, way, "a")
		a.cluster.Store(2)
		checked(t, s, 0, func() bool { return s.servers[0].foreign.Load() })
		refused := func(when string) {
			t.Helper()
			if got, err := says(t, way, http.MethodPost, "new"); !errors.Is(err, errForeign) || a.requests.Load() != 1 {
				t.Errorf("%s: %q, %v", when, got, err)
			}
		}
		refused("at once")
		a.ready.Store(false)
		time.Sleep(2 * checkEvery)
		refused("while it is not ready")
		a.ready.Store(true)
		a.secret.Store(true)
		time.Sleep(2 * checkEvery)
		refused("while its namespaces may not be read")
		a.secret.Store(false)
		a.cluster.Store(0)
		checked(t, s, 0, func() bool { return !s.servers[0].foreign.Load() })
		wantAnswer(t, way, "a")
	})
}
