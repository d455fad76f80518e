package status

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// counted returns a registry with counted requests.
func counted(t *testing.T, rows []requestRow, others map[string]float64) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewRegistry()
	total := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "watchproxy_requests_total", Help: "As the proxy has it."},
		[]string{"verb", "group", "version", "resource", "code", "source"})
	r.MustRegister(total)
	for _, row := range rows {
		total.WithLabelValues(row.verb, "", "v1", row.resource, cmp.Or(row.code, "200"), row.source).Add(row.n)
	}
	for name, n := range others {
		name, result, _ := strings.Cut(name, ":")
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "As the proxy has it.", ConstLabels: prometheus.Labels{"result": result, "source": result}})
		c.Add(n)
		r.MustRegister(c)
	}
	return r
}

// statusOf returns the status of a proxy without feeds.
func statusOf(t *testing.T, registry *prometheus.Registry) *Status {
	t.Helper()
	s, err := Of(nil, nil, registry)
	if err != nil {
		t.Error(err)
	}
	return s
}

type requestRow struct {
	verb, resource, source string
	n                      float64
	code                   string // 200 if empty
}

func TestStatusCounts(t *testing.T) {
	ratio := func(of float64) *float64 { return &of }
	for name, test := range map[string]struct {
		rows     []requestRow
		others   map[string]float64
		requests requests
		upstream toUpstream
	}{
		"nothing yet": {},
		"too old": {
			rows:     []requestRow{{"watch", "pods", "cache", 30, "410"}, {"list", "pods", "cache", 10, "410"}, {"list", "pods", "cache", 10, ""}},
			requests: requests{Cache: 50, HitRatio: ratio(1)},
			upstream: toUpstream{Saved: 10},
		},
		"everything": {
			rows: []requestRow{
				{"list", "pods", "cache", 50, ""},
				{"watch", "pods", "cache", 30, ""},
				{"get", "pods", "cache", 10, ""},
				{"get", "pods", "upstream", 10, ""},
				{"get", "pods/log", "upstream", 5, ""},
				{"create", "pods", "upstream", 4, ""},
				{"get", "", "upstream", 3, ""},
				{"list", "", "upstream", 1, ""},
				{"list", "", "proxy", 7, ""},
			},
			others: map[string]float64{
				"watchproxy_forwards_shared_total": 6, "watchproxy_feed_requests_total": 5,
				"watchproxy_response_bytes_total:cache": 1100, "watchproxy_response_bytes_total:upstream": 500,
				"watchproxy_feed_received_bytes_total": 30,
			},
			requests: requests{Cache: 90, Forwarded: 23, Shared: 6, Refused: 7, HitRatio: ratio(0.9)},
			// Without the proxy, upstream would have got 113 requests. It got 17 of them, and 7 of
			// the proxy's own.
			upstream: toUpstream{Forwarded: 17, Feeds: 5, Reviews: 2, Total: 24, Saved: 89, SavedBytes: 1100, FeedBytes: 30},
		},
	} {
		t.Run(name, func(t *testing.T) {
			registry := counted(t, test.rows, test.others)
			reviews := prometheus.NewHistogramVec(
				prometheus.HistogramOpts{Name: "watchproxy_review_duration_seconds", Help: "As there."}, []string{"code"})
			registry.MustRegister(reviews)
			for range test.upstream.Reviews {
				reviews.WithLabelValues("201").Observe(1)
			}
			s := statusOf(t, registry)
			if !reflect.DeepEqual(s.Requests, test.requests) || s.ToUpstream != test.upstream {
				got, _ := json.Marshal(s)
				t.Errorf("got %s\nwant %+v, %+v", got, test.requests, test.upstream)
			}
		})
	}
}

// threeFeeds returns a synced feed, a feed that has lost upstream, and a feed that is syncing.
func threeFeeds() []upstream.FeedStatus {
	return []upstream.FeedStatus{
		{
			GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, LastSign: time.Now(),
			Stats: watchcache.Stats{Ready: true, ResourceVersion: 123456, Newest: 123456, Since: 100, Objects: 2000, Bytes: 9 << 20, LogEvents: 12, LogBytes: 3 << 10, Cursors: 200, Events: 2100, Delivered: 420000},
		},
		{
			GVR: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, LastSign: time.Now().Add(-2 * time.Hour), Lost: 90 * time.Second,
			Stats: watchcache.Stats{Ready: true, Objects: 3, Bytes: 100, Cursors: 1},
		},
		{GVR: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, LastSign: time.Now()},
	}
}

var forwarded = []metrics.Forwarded{
	{Verb: "get", Version: "v1", Resource: "secrets", Reason: "not-cached", Count: 1234}, {Verb: "create", Reason: "not-a-read", Count: 5},
}

// admin is the admin address of a proxy with the three feeds.
func admin(t *testing.T) *httptest.Server {
	t.Helper()
	registry := counted(t, []requestRow{{"list", "pods", "cache", 12345, ""}}, map[string]float64{"process_resident_memory_bytes": 100 << 20})
	return serving(t, reported(t, func() (prometheus.Gatherer, []upstream.FeedStatus) { return registry, threeFeeds() }), "")
}

// reported returns the report of a proxy. No time passes between the call of state and the report.
func reported(t *testing.T, state func() (prometheus.Gatherer, []upstream.FeedStatus)) (s *Status) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		registry, feeds := state()
		var err error
		if s, err = Of(feeds, forwarded, registry); err != nil {
			t.Error(err)
		}
		s.Upstream = "https://upstream"
	})
	return s
}

// serving is the admin address of a proxy with a report. If notReady is not empty, its lines are
// the failing checks of /readyz, each with its reason.
func serving(t *testing.T, report *Status, notReady string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/readyz") && notReady != "":
			answer := "[+]ping ok\n"
			for line := range strings.SplitSeq(notReady, "\n") {
				name, why, _ := strings.Cut(line, ": ")
				if r.URL.Path == "/readyz/"+name {
					http.Error(w, "internal server error: "+why, http.StatusInternalServerError)
					return
				}
				answer += "[-]" + name + " failed: reason withheld\n"
			}
			http.Error(w, answer+"readyz check failed", http.StatusInternalServerError)
			return
		case r.URL.Path == "/readyz":
			return
		case r.URL.Path != "/status":
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(report)
	}))
	t.Cleanup(func() {
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func TestStatusCommand(t *testing.T) {
	s := admin(t)
	var out bytes.Buffer
	if err := execute(t.Context(), &out, "--admin", strings.TrimPrefix(s.URL, "http://")); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"RESOURCE             ENCODING  STATE     OBJECTS  SIZE     LOG  RESOURCEVERSION  AGE   WATCHES  EVENTS  DELIVERED\n",
		"\npods.v1              json      synced    2000     9.0 MiB  12   123456           ",
		"\ndeployments.v1.apps  json      lost 90s  3        100 B    0    0                120m  1        0       0\n",
		"\nnodes.v1             json      syncing   0        0 B      0    0                ",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in\n%s", line, &out)
		}
	}

	out.Reset()
	if err := execute(t.Context(), &out, "--admin", s.URL, "-o", "json"); err != nil {
		t.Fatal(err)
	}
	var got Status
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Feeds) != 3 || got.Memory.Objects != 9<<20+100 || got.Watches != 201 {
		t.Errorf("%v: %+v", err, got)
	}
}

// --check returns an error if the proxy is not healthy, and prints each reason on its own line.
func TestCheck(t *testing.T) {
	t.Parallel()
	brief := []upstream.FeedStatus{{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Lost: 9 * time.Second}}
	lost := threeFeeds()[1]
	for name, test := range map[string]struct {
		refused  float64       // watchproxy_config_refused
		silent   time.Duration // since upstream's last answer to a check; 0: there are no checks
		usable   float64       // watchproxy_upstream_server_usable
		feeds    []upstream.FeedStatus
		notReady string
		want     []string
	}{
		"no feeds":            {},
		"syncing":             {feeds: threeFeeds()[2:]},
		"a break in a stream": {feeds: brief},
		"upstream lost":       {feeds: threeFeeds(), want: []string{"deployments.v1.apps (json): upstream is lost since 90s: check https://upstream"}},
		"no feed, upstream":   {silent: 90 * time.Second, want: []string{"upstream answers no checks since 90s: check https://upstream"}},
		"no check for long":   {silent: 90 * time.Second, usable: 1},
		"one check failed":    {silent: 12 * time.Second},
		"all of them": {
			refused: 1, feeds: append(threeFeeds(), lost), notReady: "one: why\ntwo: because",
			want: []string{"not ready: why", "not ready: because", "the configuration file is refused", "deployments.v1.apps", "deployments.v1.apps"},
		},
	} {
		report := reported(t, func() (prometheus.Gatherer, []upstream.FeedStatus) {
			figures := map[string]float64{"watchproxy_config_refused": test.refused}
			if test.silent > 0 {
				figures["watchproxy_upstream_server_usable"] = test.usable
				figures["watchproxy_upstream_last_answer_timestamp_seconds"] = float64(time.Now().Add(-test.silent).Unix())
			}
			return counted(t, nil, figures), test.feeds
		})
		s := serving(t, report, test.notReady)
		var stdout, stderr bytes.Buffer
		err := executeWith(t.Context(), &stdout, &stderr, "--admin", s.URL, "--check")
		if healthy := len(test.want) == 0; healthy && (err != nil || stdout.String() != "healthy\n") || !healthy && (!errors.Is(err, ErrUnhealthy) || stdout.Len() > 0) {
			t.Errorf("%s: %v, %s", name, err, &stdout)
		}
		lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
		if stderr.Len() == 0 {
			lines = nil
		}
		if len(lines) != len(test.want) {
			t.Errorf("%s:\n%s", name, &stderr)
			continue
		}
		for i, want := range test.want {
			if !strings.HasPrefix(lines[i], "watchproxy: not healthy: "+want) {
				t.Errorf("%s: got %s, want %s", name, lines[i], want)
			}
		}
	}
}

// execute runs the command with the root command's settings.
func execute(ctx context.Context, out io.Writer, args ...string) error {
	return executeWith(ctx, out, io.Discard, args...)
}

func executeWith(ctx context.Context, out, errs io.Writer, args ...string) error {
	cmd := Command()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	return cmd.ExecuteContext(ctx)
}

func TestStatusRefuses(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	kubernetes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"kind":"Status"}`)) }))
	defer kubernetes.Close()
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "403: use https", http.StatusForbidden) }))
	defer guarded.Close()
	for name, test := range map[string]struct {
		args []string
		says []string
	}{
		"from elsewhere":   {[]string{"--admin", guarded.URL}, []string{guarded.URL, "403: use https", "port-forward"}},
		"not there":        {[]string{"--admin", gone.URL}, []string{gone.URL, "refused", "--admin", "adminListen"}},
		"the listener":     {[]string{"--admin", kubernetes.URL}, []string{kubernetes.URL, "adminListen and not listen"}},
		"an argument":      {[]string{"http://a"}, []string{"unknown command", "http://a"}},
		"check, formatted": {[]string{"--check", "-o", "json"}, []string{"check", "output"}},
		"not JSON":         {[]string{"-o", "yaml"}, []string{"must be json, or not given"}},
	} {
		var out bytes.Buffer
		err := execute(t.Context(), &out, test.args...)
		if err == nil || out.Len() > 0 {
			t.Errorf("%s: %v, %s", name, err, &out)
			continue
		}
		for _, what := range test.says {
			if !strings.Contains(err.Error(), what) {
				t.Errorf("%s: no %q in: %v", name, what, err)
			}
		}
	}
}

func TestUnits(t *testing.T) {
	for got, want := range map[string]string{
		age(0.04): "0s", age(1.234): "1s", age(75.4): "75s", age(150): "2m30s", age(7230): "120m", age(90000): "25h",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Failures are counted by kind. Latencies are of responses except watches, and deliveries are to
// clients that read.
func TestStatusHasErrorsAndLatency(t *testing.T) {
	registry := counted(t, []requestRow{
		{"list", "pods", "cache", 100, "200"},
		{"list", "pods", "cache", 1, "504"},
		{"get", "pods", "upstream", 2, "500"},
		{"get", "pods", "proxy", 4, "429"},
		{"get", "pods", "upstream", 8, "429"},
		{"get", "pods", "upstream", 16, "404"},
		{"watch", "pods", "cache", 32, "410"},
	}, nil)
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "watchproxy_request_duration_seconds", Help: "As there.", Buckets: []float64{0.001, 0.01, 0.1}}, []string{"verb", "resource", "source"})
	lag := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "watchproxy_watch_delivery_lag_seconds", Help: "As there.", Buckets: []float64{0.001, 0.01}}, []string{"resource", "client"})
	registry.MustRegister(took, lag)
	for range 50 {
		took.WithLabelValues("list", "pods", "cache").Observe(0.0005)
		took.WithLabelValues("get", "nodes", "cache").Observe(0.005)
		lag.WithLabelValues("pods", "prompt").Observe(0.0001)
		lag.WithLabelValues("pods", "slow").Observe(7)
	}
	took.WithLabelValues("watch", "pods", "cache").Observe(60)
	took.WithLabelValues("list", "pods", "upstream").Observe(3)
	s := statusOf(t, registry)
	if want := (failures{Server: 3, Limited: 12, Client: 48}); s.Errors != want {
		t.Errorf("got %+v, want %+v", s.Errors, want)
	}
	if c := s.Latency.Cache; c.Count != 100 || math.Abs(c.Seconds-0.275) > 1e-9 || len(c.Buckets) != 3 || c.Buckets[0] != (bucket{0.001, 50}) || c.Buckets[2] != (bucket{0.1, 100}) {
		t.Errorf("cache: %+v", c)
	}
}
