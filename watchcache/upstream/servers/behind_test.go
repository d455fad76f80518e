package servers

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestServerThatLagsIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newAPIServer(t, "a"), newAPIServer(t, "b"), newAPIServer(t, "c")
		b.rv.Store(99)
		_, way := serversOf(t, a, b, c)
		a.stop()
		wantAnswer(t, way, "c")
	})
}

func TestServerThatLagsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		b.rv.Store(99)
		s, way := serversOf(t, a, b)
		a.stop()
		if got, err := says(t, way, http.MethodGet, ""); err == nil {
			t.Errorf("%s answered", got)
		}
		b.rv.Store(100)
		checked(t, s, 1, func() bool { return s.Current() == b.name })
		wantAnswer(t, way, "b")
	})
}

// If a server fails, the other one has been behind for long, and still is, it is used only after a
// while.
func TestServerThatHasLaggedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		b.rv.Store(99)
		s, way := serversOf(t, a, b)
		time.Sleep(2 * waitBehind)
		a.stop()
		for lost := time.Now(); time.Since(lost) < waitBehind; time.Sleep(waitBehind / 20) {
			if got, err := says(t, way, http.MethodGet, ""); err == nil {
				t.Errorf("%s answered after %s", got, time.Since(lost))
			}
		}
		checked(t, s, 1, func() bool { return s.Current() == b.name })
		wantAnswer(t, way, "b")
	})
}

// The wait for a server that is behind begins when it is behind, even if no server was there before.
func TestServerThatComesBackBehindIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, _ := serversOf(t, a, b)
		a.stop()
		b.ready.Store(false)
		time.Sleep(3 * waitBehind)
		b.rv.Store(99)
		b.ready.Store(true)
		usable := func() bool { return testutil.ToFloat64(s.metrics.usable.WithLabelValues(b.name)) == 1 }
		time.Sleep(waitBehind - time.Second)
		if usable() {
			t.Error("it is used at once")
		}
		checked(t, s, 1, usable)
	})
}

// If all servers are at an earlier state and stay there, etcd was restored. Feeds then start again.
func TestRestoreIsBelievedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		a.rv.Store(50)
		b.rv.Store(50)
		checked(t, s, 0, func() bool { return testutil.ToFloat64(s.metrics.usable.WithLabelValues(a.name)) == 0 })
		checked(t, s, 1, func() bool { return testutil.ToFloat64(s.metrics.usable.WithLabelValues(b.name)) == 0 })
		if _, err := says(t, way, http.MethodGet, ""); err != nil {
			t.Errorf("while nothing else is there, the one of before is asked: %v", err)
		}
		checked(t, s, 0, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.newest == 50
		})
		wantAnswer(t, way, "a")
	})
}
