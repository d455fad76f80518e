package upstream

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// starter is an upstream that can respond late or behave like a starting server. A starting server
// reports that it is not ready, and refuses every request because it has no access rules yet.
type starter struct {
	*frail
	starting atomic.Bool
	takes    atomic.Int64 // nanoseconds per response
	checks   atomic.Int64 // requests of /readyz
}

// RoundTrip implements http.RoundTripper.
func (s *starter) RoundTrip(req *http.Request) (*http.Response, error) {
	if !client.Sleep(req.Context(), time.Duration(s.takes.Load())) {
		return nil, req.Context().Err()
	}
	check := req.URL.Path == "/readyz"
	if check {
		s.checks.Add(1)
	}
	switch {
	case !s.starting.Load():
		return s.frail.RoundTrip(req)
	case check:
		return reply(http.StatusInternalServerError, "not yet"), nil
	default:
		return statusReply(http.StatusForbidden), nil
	}
}

// A starting upstream that refuses all requests does not end any cache, even after a long outage.
func TestStartAfterALongOutage(t *testing.T) {
	for _, outage := range []time.Duration{20 * time.Second, time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &starter{frail: newFrail()}
				_, all := startMany(t, s)
				time.Sleep(time.Minute)
				s.leave()
				time.Sleep(outage)
				s.starting.Store(true)
				s.turn(up)
				time.Sleep(15 * time.Second)
				s.starting.Store(false)
				time.Sleep(10 * time.Second)
				for _, f := range all {
					if _, lost := f.Lost(); lost || !f.Cache().Stats().Ready {
						t.Errorf("%s has ended, or follows nobody", f)
					}
				}
			})
		})
	}
}

// An upstream whose responses take longer than a check's timeout is still followed.
func TestSlowUpstreamIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starter{frail: newFrail()}
		_, all := startMany(t, s)
		time.Sleep(time.Minute)
		s.takes.Store(int64(servers.CheckTimeout + time.Second/2))
		s.cutStreams(false)
		time.Sleep(10 * time.Minute)
		for _, f := range all {
			if _, lost := f.Lost(); lost {
				t.Errorf("%s has no stream", f)
			}
		}
	})
}

// If a state is read in pages, the end of the read does not mean that upstream is down. Upstream's
// return takes as few checks as with streaming.
func TestPagesRaiseNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starter{frail: newFrail()}
		s.fakeUpstream.mu.noStream = 422
		_, all := startMany(t, s)
		time.Sleep(time.Minute)
		s.leave()
		time.Sleep(8 * time.Second)
		s.checks.Store(0)
		s.turn(up)
		wantFresh(t, s.frail, all)
		const most = 3
		if n := s.checks.Load(); n > most {
			t.Errorf("/readyz was asked %d times", n)
		}
	})
}
