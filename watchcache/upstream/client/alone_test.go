package client

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// answering is a server that can be taken away.
type answering struct {
	down, unready atomic.Bool
	slow          atomic.Bool // it does not answer /readyz
	refuses       atomic.Bool // it answers everything with 403
	unknown       atomic.Bool // it answers everything with 401
	asked         atomic.Int64
}

func (a *answering) RoundTrip(req *http.Request) (*http.Response, error) {
	a.asked.Add(1)
	if a.down.Load() {
		return nil, errors.New("no route to host")
	}
	if a.slow.Load() && req.URL.Path == "/readyz" {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	body := `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`
	resp := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {"application/json"}}, Request: req}
	if a.unready.Load() && req.URL.Path == "/readyz" {
		resp.StatusCode, resp.Status = http.StatusInternalServerError, "500 Internal Server Error"
	}
	if a.refuses.Load() {
		resp.StatusCode, resp.Status = http.StatusForbidden, "403 Forbidden"
		body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`
	}
	if a.unknown.Load() {
		resp.StatusCode, resp.Status = http.StatusUnauthorized, "401 Unauthorized"
		body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`
	}
	resp.Body = io.NopCloser(strings.NewReader(body))
	return resp, nil
}

// alone is the address of a single server.
const alone = "10.0.0.1:6443"

// startAlone starts the checks of a single server, until the test ends.
func startAlone(t *testing.T, log *zap.Logger) (*answering, *Servers, *ServerMetrics) {
	t.Helper()
	registry := prometheus.NewRegistry()
	metrics, server := NewServerMetrics(registry), &answering{}
	s, err := NewServers(t.Context(), []Server{{Base: &url.URL{Scheme: "https", Host: alone}, Transport: server}}, metrics, NewMetrics(registry), log)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, s)
	return server, s, metrics
}

// The loss and the return of the only server are noticed without any feed: in the metrics, and in
// one log line each.
func TestLossWithoutFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zap.InfoLevel)
		server, s, metrics := startAlone(t, zap.New(core))
		expect := func(usable float64, said ...string) {
			t.Helper()
			if got := testutil.ToFloat64(metrics.usable.WithLabelValues(alone)); got != usable {
				t.Errorf("usable is %v", got)
			}
			var got []string
			for _, line := range lines.TakeAll() {
				got = append(got, line.Message)
			}
			if strings.Join(got, ", ") != strings.Join(said, ", ") {
				t.Errorf("the log says %q, want %q", got, said)
			}
		}
		time.Sleep(time.Minute)
		expect(1)
		// One check without a response may happen to a busy server.
		before := server.asked.Load()
		server.down.Store(true)
		for server.asked.Load() < before+lostAfter-1 {
			time.Sleep(time.Second)
		}
		server.down.Store(false)
		time.Sleep(time.Minute)
		expect(1)
		server.down.Store(true)
		time.Sleep(checkAlone + lostAfter*checkEvery)
		expect(0, "upstream is lost")
		time.Sleep(time.Minute)
		expect(0)
		if age := float64(time.Now().Unix()) - testutil.ToFloat64(metrics.answers.WithLabelValues(alone)); age < 60 {
			t.Errorf("the last answer is %v s old, but nobody answers", age)
		}
		server.down.Store(false)
		time.Sleep(3 * checkTimeout)
		expect(1, "upstream is back")
		// A doubt leads to checks at once.
		server.down.Store(true)
		s.Health.Doubt()
		time.Sleep(checkRest + time.Millisecond)
		expect(0, "upstream is lost")
		server.down.Store(false)
		time.Sleep(3 * checkTimeout)
		expect(1, "upstream is back")
		// A server that says for long that it is not ready, and answers reads, is not lost.
		server.unready.Store(true)
		time.Sleep(unreadyPatience + time.Minute)
		expect(1, "upstream is lost", "upstream is back")
	})
}

// A server that answers reads but not /readyz is not lost, and its answers count.
func TestServerWithoutReadyz(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _, metrics := startAlone(t, zap.NewNop())
		time.Sleep(time.Minute)
		server.slow.Store(true)
		time.Sleep(2 * time.Minute)
		if testutil.ToFloat64(metrics.usable.WithLabelValues(alone)) != 1 {
			t.Error("the server counts as lost")
		}
		if age := float64(time.Now().Unix()) - testutil.ToFloat64(metrics.answers.WithLabelValues(alone)); age > 30 {
			t.Errorf("the last answer is %v s old", age)
		}
	})
}

// A proxy that may no longer read /readyz, nor anything else that is asked for, keeps its server.
func TestServerThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _, metrics := startAlone(t, zap.NewNop())
		time.Sleep(time.Minute)
		server.refuses.Store(true)
		time.Sleep(checkAlone)
		if testutil.ToFloat64(metrics.usable.WithLabelValues(alone)) != 0 {
			t.Error("a server that may have just started is used")
		}
		time.Sleep(2 * unreadyPatience)
		if testutil.ToFloat64(metrics.usable.WithLabelValues(alone)) != 1 {
			t.Error("the server counts as lost")
		}
	})
}

// While the server refuses the proxy's own credentials, the set reports it, and logs it once. A
// missing right is no such refusal, and a server without an answer leaves the last one standing.
func TestCredentialsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zap.InfoLevel)
		server, s, _ := startAlone(t, zap.New(core))
		for _, step := range []struct {
			name    string
			turn    *atomic.Bool
			on      bool
			refused bool
		}{
			{"right removed", &server.refuses, true, false},
			{"right given", &server.refuses, false, false},
			{"token revoked", &server.unknown, true, true},
			{"server down", &server.down, true, true},
			{"server back", &server.down, false, true},
			{"token renewed", &server.unknown, false, false},
		} {
			step.turn.Store(step.on)
			time.Sleep(2 * unreadyPatience)
			if err := s.Credentials(); (err != nil) != step.refused {
				t.Errorf("%s: %v", step.name, err)
			}
		}
		for _, part := range []string{"does not accept the proxy's own credentials", "accepts the proxy's own credentials again"} {
			said := lines.Filter(func(e observer.LoggedEntry) bool { return strings.Contains(e.Message, part) })
			if said.Len() != 1 {
				t.Errorf("the log says %d times that upstream %s", said.Len(), part)
			}
		}
	})
}
