package commandline

import (
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The figures that the command status prints match the requests to the proxy.
func TestStatusCommand(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, Settings: "cache: {syncTimeout: 1m}\n"})
	const lists, gets = 20, 4
	for range lists {
		clients.Get(t, proxy.URL+"/api/v1/namespaces?resourceVersion=0")
	}
	for range gets {
		clients.Get(t, proxy.URL+"/api/v1/namespaces/default")
	}
	clients.Get(t, proxy.URL+"/version")

	got := runWatchproxy(t, "status", "--admin", proxy.AdminURL, "-o", "json")
	if got.Code != 0 || got.Stderr != "" {
		t.Fatalf("%+v", got)
	}
	var s struct {
		Upstream      string
		UptimeSeconds float64
		Memory        struct{ ResidentBytes, ObjectBytes, LimitBytes int64 }
		Requests      struct {
			Cache, Forwarded, Shared, Refused int
			HitRatio                          *float64
		}
		UpstreamRequests struct{ Forwarded, Feeds, Reviews, Total, Saved int }
		Feeds            []struct {
			Resource             string
			Objects, ObjectBytes int64
		}
	}
	if err := json.Unmarshal([]byte(got.Stdout), &s); err != nil {
		t.Fatal(err)
	}
	if r := s.Requests; r.Cache != lists || r.Forwarded != gets+1 || r.Refused != 0 || r.HitRatio == nil || *r.HitRatio != float64(lists)/(lists+gets) {
		t.Errorf("requests %+v", r)
	}
	feeds := int(proxy.MetricsT(t).Sum("watchproxy_feed_requests_total"))
	if u := s.UpstreamRequests; u.Forwarded != gets+1 || u.Feeds < 1 || u.Feeds > feeds || u.Reviews != 0 ||
		u.Total != u.Forwarded+u.Feeds || u.Saved != lists-u.Feeds {
		t.Errorf("upstream %+v, feeds have asked %d times", u, feeds)
	}
	if len(s.Feeds) != 1 || s.Feeds[0].Resource != "namespaces" || s.Feeds[0].Objects == 0 || s.Memory.ObjectBytes != s.Feeds[0].ObjectBytes ||
		s.Memory.ResidentBytes <= 0 || s.UptimeSeconds <= 0 || s.Upstream != w.API.URL {
		t.Errorf("%+v", s)
	}
	if text := runWatchproxy(t, "status", "--admin", proxy.AdminURL); text.Code != 0 || !strings.Contains(text.Stdout, "namespaces.v1  json") {
		t.Errorf("%+v", text)
	}
	// If --admin is given the client address, the error says so.
	if wrong := runWatchproxy(t, "status", "--admin", proxy.URL); wrong.Code != 1 || !strings.Contains(wrong.Stderr, "adminListen and not listen") {
		t.Errorf("%+v", wrong)
	}
}

// status --check succeeds for a healthy proxy, and fails with the reason for any other.
func TestStatusCheck(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: w.API.Kubeconfig, Settings: "logLevel: info\n"})
	clients.Get(t, proxy.URL+"/api/v1/namespaces?resourceVersion=0")
	if got := runWatchproxy(t, "status", "--admin", proxy.AdminURL, "--check"); got != (clients.Outcome{Stdout: "healthy\n"}) {
		t.Errorf("at first: %+v", got)
	}
	// The proxy refuses this change, and goes on with its old configuration.
	if err := errors.Join(proxy.Configure("logLevel: loud\n"), proxy.Signal(syscall.SIGHUP)); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "the check fails", func() bool {
		got := runWatchproxy(t, "status", "--admin", proxy.AdminURL, "--check")
		return got.Code == 1 && got.Stdout == "" && strings.HasPrefix(got.Stderr, "watchproxy: not healthy: the configuration file is refused") && strings.Count(got.Stderr, "\n") == 1
	})
	if err := proxy.Stop(); err != nil {
		t.Fatal(err)
	}
	got := runWatchproxy(t, "status", "--admin", proxy.AdminURL, "--check")
	if got.Code != 1 || got.Stdout != "" || !strings.Contains(got.Stderr, proxy.AdminURL+" cannot be reached") {
		t.Errorf("when it has stopped: %+v", got)
	}
}
