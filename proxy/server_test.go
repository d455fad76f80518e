package proxy

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// logging returns a server that only logs.
func logging(o Options) (*Server, *observer.ObservedLogs) {
	core, lines := observer.New(zap.InfoLevel)
	s := &Server{
		options: new(atomic.Pointer[Options]),
		metrics: metrics.New(prometheus.NewRegistry()),
		log:     zap.New(core),
	}
	s.options.Store(&o)
	s.limits = newLimiter(s.options, s.metrics)
	s.requests = newRequestLog(s.options, s.metrics, s.log)
	s.upstream = &upstream{options: s.options, limits: s.limits, requests: s.requests}
	return s, lines
}

// from is the connection of a request, with the client's address.
type from struct {
	exchange.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.address))
}

// A line of the access log has the sender, the request and the cost of the response. It omits the
// values of parameters that may be secrets.
func TestAccessLog(t *testing.T) {
	for sampling, want := range map[float64][2]int{0: {0, 0}, 0.5: {1, 999}, 1: {1000, 1000}} {
		s, lines := logging(Options{AccessLog: sampling})
		req := &exchange.Request{
			Method: http.MethodGet, Path: "/api/v1/namespaces/shop/pods", Query: "labelSelector=app%3Dcart&command=psql+-pSECRET&limit=5",
			Header:   http.Header{"User-Agent": {"test"}, "Impersonate-User": {"carol"}},
			Identity: &access.Caller{User: &user.DefaultInfo{Name: "alice"}}, Conn: from{address: "192.0.2.7:4711"},
		}
		req.Route = exchange.ParseRoute(req.Method, req.Path)
		req.Route.View = &exchange.View{Name: "slim"}
		resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		resp.Header.Set("Audit-Id", "of the client")
		for range 1000 {
			s.requests.answered(req, resp, time.Second)
			resp.Close(4321)
		}
		if n := lines.Len(); n < want[0] || n > want[1] {
			t.Errorf("%d of 1000 were logged with a probability of %v", n, sampling)
		}
		for _, line := range lines.All() {
			got := line.ContextMap()
			duration := got["duration"].(time.Duration)
			delete(got, "duration")
			want := map[string]any{
				"verb": "list", "path": "/api/v1/namespaces/shop/pods", "code": int64(200), "source": "cache", "user": "alice", "impersonatedUser": "carol",
				"sourceAddress": "192.0.2.7:4711", "version": "v1", "resource": "pods", "namespace": "shop", "view": "slim",
				"query": "labelSelector=app%3Dcart&command=…&limit=5", "userAgent": "test", "auditID": "of the client",
				"bytes": int64(4321), "latency": time.Second,
			}
			if line.Message != "request" || !maps.Equal(got, want) || duration < time.Second {
				t.Fatalf("%s %v %v\nwant %v", line.Message, duration, got, want)
			}
		}
	}
}

// A request that fails, is refused or is slow is logged with its user although it is not in the
// sample. If there are many, only some are logged. A watch is slow if it begins slowly, however long it lasts.
// A stranger who reads its refusal late takes no lines of others.
func TestRemarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lines := logging(Options{})
		req := &exchange.Request{
			Method: http.MethodGet, Path: "/api/v1/pods", Header: http.Header{}, Identity: &access.Caller{User: &user.DefaultInfo{Name: "alice"}},
		}
		req.Route = exchange.ParseRoute(req.Method, req.Path)
		answer := func(resp *exchange.Response, latency, writing time.Duration) (logged []string) {
			s.requests.answered(req, resp, latency)
			time.Sleep(writing)
			resp.Close(1)
			for _, line := range lines.TakeAll() {
				if line.Level == zap.WarnLevel {
					if name := line.ContextMap()["user"]; name != "alice" {
						t.Errorf("%s: the user is %v", line.Message, name)
					}
					logged = append(logged, line.Message)
				}
			}
			return logged
		}
		list, lasts := exchange.NewResponse(http.StatusOK, exchange.FromCache), exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
		lasts.Lasts = true
		watch := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		watch.Body = &anyStream{}
		refused := req.Refuse(exchange.TooManyRequests("too many"))
		failed, theirs := exchange.NewResponse(http.StatusServiceUnavailable, exchange.FromProxy), exchange.NewResponse(http.StatusServiceUnavailable, exchange.FromUpstream)
		for name, test := range map[string]struct {
			resp             *exchange.Response
			latency, writing time.Duration
			logged           string
		}{
			"fast":                    {list, time.Second, 0, ""},
			"slow":                    {list, 2 * time.Second, 0, "slow request"},
			"written slowly":          {list, time.Second, time.Second, "slow request"},
			"forwarded watch":         {lasts, time.Second, time.Hour, ""},
			"slow forwarded watch":    {lasts, 3 * time.Second, time.Hour, "slow request"},
			"watch":                   {watch, time.Second, time.Hour, ""},
			"watch that began slowly": {watch, 3 * time.Second, time.Hour, "slow request"},
			"refused":                 {refused, 0, 0, "request refused"},
			"failed":                  {failed, 3 * time.Second, 0, "request failed"},
			"failed upstream":         {theirs, 0, 0, ""},
			"client left":             {exchange.ClientGone(), 0, 0, ""},
		} {
			if got := strings.Join(answer(test.resp, test.latency, test.writing), ", "); got != test.logged {
				t.Errorf("%s: the log says %q", name, got)
			}
		}
		for want, a := range []*access.Access{{}, nil} { // without access, all clients are known
			s.options.Store(&Options{Options: read.Options{Access: a}})
			stranger := &exchange.Request{Method: http.MethodGet, Path: "/api/v1/pods", Header: http.Header{}, Conn: from{address: "192.0.2.7:4711"}}
			refusal := unauthorized(stranger)
			s.requests.answered(stranger, refusal, 0)
			time.Sleep(time.Minute)
			refusal.Close(1)
			if got := len(lines.TakeAll()); got != want {
				t.Errorf("%d lines of a client without credentials, want %d", got, want)
			}
		}
		time.Sleep(time.Minute)
		logged := 0
		for range 1000 {
			logged += len(answer(list, 2*time.Second, 0))
		}
		if logged != remarkBurst {
			t.Errorf("%d of 1000 slow requests at once were logged", logged)
		}
		time.Sleep(time.Second)
		s.requests.answered(req, list, 2*time.Second)
		list.Close(1)
		if got := lines.All()[0].ContextMap()["unlogged"]; got != int64(1000-remarkBurst) {
			t.Errorf("the next line tells of %v more", got)
		}
	})
}

// anyStream is a watch.
type anyStream struct{ exchange.Stream }

// A client can choose some texts of a log line, but not long texts.
func TestAccessLogIsShort(t *testing.T) {
	s, lines := logging(Options{AccessLog: 1})
	long := strings.Repeat("x", 60<<10)
	req := &exchange.Request{
		Method: http.MethodGet, Path: "/apis/" + long + "/v1/namespaces/" + long + "/" + long + "/" + long, Query: "labelSelector=" + long,
		Header: http.Header{"User-Agent": {long}, "Impersonate-User": {long}},
	}
	req.Route = exchange.ParseRoute(req.Method, req.Path)
	resp := exchange.NewResponse(http.StatusNotFound, exchange.FromUpstream)
	resp.Header.Set("Audit-Id", long)
	s.requests.answered(req, resp, time.Second)
	resp.Close(0)
	const most = 8 << 10
	if line := fmt.Sprint(lines.All()[0].ContextMap()); len(line) > most {
		t.Errorf("a line has %d bytes", len(line))
	}
}

// Input that is no request is counted and logged by what it asks for.
func TestRefusedIsLogged(t *testing.T) {
	s, lines := logging(Options{AccessLog: 1})
	req := &exchange.Request{Method: http.MethodGet, Path: "/api/v1/pods", Header: http.Header{}}
	resp := exchange.NoRequest(exchange.BadRequest("malformed header"))
	s.Refused(req, resp)
	resp.Close(0)
	line := lines.All()[0].ContextMap()
	if line["verb"] != "list" || line["resource"] != "pods" || line["error"] != "malformed header" {
		t.Errorf("the line is %v", line)
	}
}

// A reload reaches all parts of the server.
func TestSetOptions(t *testing.T) {
	o, reviews := testOptions(), &access.Access{}
	o.Access, o.Window = reviews, 9
	s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, o)
	o = testOptions()
	o.Limits.Stall, o.MaxStaleness, o.Drain = 7*time.Minute, 7*time.Second, 7*time.Hour
	o.Limits.UserWatches++
	s.SetOptions(o)
	if got := s.listening.Limits(); got != o.Limits {
		t.Errorf("listening: %+v", got)
	}
	if got := s.limits.limits(); got != o.Limits {
		t.Errorf("limits: %+v", got)
	}
	if got := s.reader.Options(); got.MaxStaleness != o.MaxStaleness || got.Access != reviews {
		t.Errorf("reading: %+v", got)
	}
	if got := s.options.Load(); got.Window != 9 || got.Access != reviews {
		t.Errorf("fixed: %+v, %v", got.Fixed, got.Access)
	}
	if got := s.life.Drain(); got != o.Drain {
		t.Errorf("it drains for %v", got)
	}
}
