package chart

import (
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

// alerts returns the rules in the chart's file. Prometheus can load this file directly.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	path := filepath.Join(chartDir(), "alerts", "watchproxy.yaml")
	file, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var all []rulefmt.Rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// course is a set of series, with a sample a minute, and the time at which an alert first fires.
// The series use the notation of Prometheus' own tests: 1x5 is six samples of 1, and 0+2x3 is 0, 2,
// 4, 6.
type course struct {
	series string
	fires  time.Duration
	of     string // a label of the firing alert
}

// feed is the labels of a cache's series.
const feed = `job="watchproxy",instance="a",group="",version="v1",resource="pods"`

var courses = map[string]course{
	"WatchproxyDown": {`
		up{job="watchproxy",instance="a"} 1x9 0x20
		up{job="other",instance="b"} 1x30`, 15 * time.Minute, `job="watchproxy"`},
	"WatchproxyUpstreamDown": {`
		watchproxy_feed_unreachable_seconds{` + feed + `,encoding="json"} 0x9 0+60x20`, 13 * time.Minute, `instance="a"`},
	"WatchproxyUpstreamServerUnusable": {`
		watchproxy_upstream_server_usable{job="watchproxy",instance="a",server="https://10.0.0.1:6443"} 1x30
		watchproxy_upstream_server_usable{job="watchproxy",instance="a",server="https://10.0.0.2:6443"} 1x4 0x30`, 15 * time.Minute, `server="https://10.0.0.2:6443"`},
	"WatchproxyReviewsFail": {`
		watchproxy_reviews_total{job="watchproxy",instance="a",resource="tokenreviews",code="201"} 0+60x40
		watchproxy_reviews_total{job="watchproxy",instance="a",resource="tokenreviews",code="0"} 0x20 60+60x20`, 26 * time.Minute, `instance="a"`},
	"WatchproxyFeedStale": {`
		watchproxy_feed_synced{` + feed + `,encoding="json"} 1x30
		watchproxy_feed_last_sign_seconds{` + feed + `,encoding="json"} 10x9 60+60x20
		watchproxy_feed_synced{` + strings.Replace(feed, "pods", "nodes", 1) + `,encoding="json"} 0x30
		watchproxy_feed_last_sign_seconds{` + strings.Replace(feed, "pods", "nodes", 1) + `,encoding="json"} 9999x30`, 17 * time.Minute, `resource="pods"`},
	"WatchproxyFeedNotSynced": {`
		watchproxy_feed_synced{` + feed + `,encoding="json"} 1x4 0x30`, 15 * time.Minute, `resource="pods"`},
	"WatchproxyRelists": {`
		watchproxy_feed_relists_total{` + feed + `,reason="no-streaming"} 0+5x60
		watchproxy_feed_relists_total{` + feed + `,reason="expired"} 0x9 1+1x40`, 18 * time.Minute, `resource="pods"`},
	"WatchproxyExpired": {`
		watchproxy_requests_total{job="watchproxy",verb="list",code="200",source="cache"} 0+600x60
		watchproxy_requests_total{job="watchproxy",verb="get",code="410",source="upstream"} 0+600x60
		watchproxy_requests_total{job="watchproxy",verb="watch",code="410",source="cache"} 0x20 60+60x40`, 36 * time.Minute, `job="watchproxy"`},
	"WatchproxyMemoryNearLimit": {`
		watchproxy_memory_budget_bytes{job="watchproxy",instance="a"} 1000x40
		watchproxy_memory_in_use_bytes{job="watchproxy",instance="a"} 690x9 720x30
		watchproxy_memory_budget_bytes{job="watchproxy",instance="unlimited"} 0x40
		watchproxy_memory_in_use_bytes{job="watchproxy",instance="unlimited"} 1e10x40`, 25 * time.Minute, `instance="a"`},
	"WatchproxyMemoryShort": {`
		watchproxy_memory_short{job="watchproxy",instance="a"} 0x9 1x30
		watchproxy_memory_short{job="watchproxy",instance="b"} 0x4 1x5 0x40`, 20 * time.Minute, `instance="a"`},
	"WatchproxyWatchesDropped": {`
		watchproxy_watches{job="watchproxy",instance="a",resource="pods"} 500x29 10x30
		watchproxy_watches{job="watchproxy",instance="b",resource="pods"} 100x29 100x30`, 32 * time.Minute, `job="watchproxy"`},
	"WatchproxyRequestsLimited": {`
		watchproxy_limited_total{job="watchproxy",instance="a",limit="user_watches"} 0x9 60+60x30`, 20 * time.Minute, `limit="user_watches"`},
	"WatchproxyErrors": {`
		watchproxy_requests_total{job="watchproxy",verb="get",code="200",source="cache"} 0+600x60
		watchproxy_requests_total{job="watchproxy",verb="get",code="503",source="proxy"} 0x20 60+60x40`, 33 * time.Minute, `source="proxy"`},
	"WatchproxyFreshnessFails": {`
		watchproxy_freshness_runs_total{` + feed + `,outcome="current"} 0+60x60
		watchproxy_freshness_runs_total{` + feed + `,outcome="failed"} 0x9 60+60x50`, 22 * time.Minute, `resource="pods"`},
	"WatchproxyCacheDiffered": {`
		watchproxy_self_checks_total{` + feed + `,outcome="same"} 1+1x60
		watchproxy_self_checks_total{` + feed + `,outcome="different"} _x9 1x60`, 9 * time.Minute, `resource="pods"`},
	"WatchproxyConfigRefused": {`
		watchproxy_config_refused{job="watchproxy",instance="a"} 0x9 1x30`, 20 * time.Minute, `instance="a"`},
	"WatchproxySavesFail": {`
		watchproxy_cache_saves_total{job="watchproxy",instance="a",outcome="failed"} _x9 1x60`, 19 * time.Minute, `instance="a"`},
}

func TestAlerts(t *testing.T) {
	tried := map[string]bool{}
	for _, r := range alerts(t) {
		c, ok := courses[r.Alert]
		if !ok {
			t.Errorf("no test has %s fire", r.Alert)
			continue
		}
		tried[r.Alert] = true
		t.Run(r.Alert, func(t *testing.T) {
			prometheus := newPrometheus(t, c.series)
			for at := time.Duration(0); at < c.fires; at += time.Minute {
				if firing := prometheus.eval(t, r, at); len(firing) > 0 {
					t.Fatalf("fires after %s: %v", at, firing[0].Labels)
				}
			}
			firing := prometheus.eval(t, r, c.fires)
			if len(firing) != 1 {
				t.Fatalf("after %s, %d fire", c.fires, len(firing))
			}
			if got := firing[0].Labels.String(); !strings.Contains(got, c.of) {
				t.Errorf("labels %s have no %s", got, c.of)
			}
			firing[0].Annotations.Range(func(l labels.Label) {
				if strings.Contains(l.Value, "error expanding") || strings.Contains(l.Value, "no value") || strings.Contains(l.Value, "{{") {
					t.Errorf("%s: %s", l.Name, l.Value)
				}
			})
			if firing[0].Annotations.Get("summary") == "" || firing[0].Annotations.Get("description") == "" {
				t.Error("summary or description is missing")
			}
		})
	}
	for name := range courses {
		if !tried[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
}

// No alert fires for a proxy that works for two hours with some relists, some errors, and a
// changing number of watches.
func TestAlertsAreQuiet(t *testing.T) {
	prometheus := newPrometheus(t, `
		up{job="watchproxy",instance="a"} 1x120
		watchproxy_feed_unreachable_seconds{`+feed+`,encoding="json"} 0x50 30 0x69
		watchproxy_feed_lost_seconds{`+feed+`,encoding="json"} 0x50 0+60x69
		watchproxy_feed_last_sign_seconds{`+feed+`,encoding="json"} 5x50 95 10x69
		watchproxy_feed_synced{`+feed+`,encoding="json"} 0x2 1x118
		watchproxy_feed_relists_total{`+feed+`,reason="expired"} 0x60 1x30 2x30
		watchproxy_reviews_total{job="watchproxy",instance="a",resource="tokenreviews",code="201"} 0+600x120
		watchproxy_reviews_total{job="watchproxy",instance="a",resource="tokenreviews",code="0"} 0x60 3x60
		watchproxy_requests_total{job="watchproxy",verb="list",code="200",source="cache"} 0+600x120
		watchproxy_requests_total{job="watchproxy",verb="list",code="410",source="cache"} 0+6x120
		watchproxy_requests_total{job="watchproxy",verb="get",code="503",source="proxy"} 0+6x120
		watchproxy_limited_total{job="watchproxy",instance="a",limit="forwards"} 0x60 5x60
		watchproxy_watches{job="watchproxy",instance="a",resource="pods"} 500x60 400x60
		watchproxy_freshness_runs_total{`+feed+`,outcome="current"} 0+60x120
		watchproxy_freshness_runs_total{`+feed+`,outcome="failed"} 0+1x120
		watchproxy_self_checks_total{`+feed+`,outcome="same"} 1x60 2x60
		watchproxy_self_checks_total{`+feed+`,outcome="inconclusive"} _x60 1x60
		watchproxy_cache_saves_total{job="watchproxy",instance="a",outcome="saved"} 0+1x120
		watchproxy_memory_budget_bytes{job="watchproxy",instance="a"} 1000x120
		watchproxy_memory_in_use_bytes{job="watchproxy",instance="a"} 640x120
		go_gc_gomemlimit_bytes{job="watchproxy",instance="a"} 1000x120
		process_resident_memory_bytes{job="watchproxy",instance="a"} 990x120`)
	for _, r := range alerts(t) {
		for at := time.Duration(0); at <= 2*time.Hour; at += time.Minute {
			if firing := prometheus.eval(t, r, at); len(firing) > 0 {
				t.Errorf("%s fires after %s: %v", r.Alert, at, firing[0].Labels)
				break
			}
		}
	}
}

// engine is Prometheus' own rules engine, with some series.
type engine struct {
	query rules.QueryFunc
	rules map[string]*rules.AlertingRule
}

func newPrometheus(t *testing.T, series string) *engine {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n"+strings.ReplaceAll(strings.TrimPrefix(series, "\n"), "\t\t", "  "))
	t.Cleanup(func() {
		if err := storage.Close(); err != nil {
			t.Error(err)
		}
	})
	const samples, lookback = 10_000, 5 * time.Minute
	e := promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{MaxSamples: samples, Timeout: time.Minute, LookbackDelta: lookback, Parser: promQL})
	return &engine{rules.EngineQueryFunc(e, storage), map[string]*rules.AlertingRule{}}
}

// eval evaluates a rule and returns the firing alerts. The time must increase from one call to the
// next.
func (e *engine) eval(t *testing.T, r rulefmt.Rule, at time.Duration) (firing []*rules.Alert) {
	t.Helper()
	rule, ok := e.rules[r.Alert]
	if !ok {
		expr, err := promQL.ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		rule = rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), time.Duration(r.KeepFiringFor), labels.FromMap(r.Labels),
			labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
		e.rules[r.Alert] = rule
	}
	if _, err := rule.Eval(t.Context(), 0, time.Unix(0, 0).Add(at), e.query, &url.URL{}, 0); err != nil {
		t.Fatal(fmt.Errorf("%s after %s: %w", r.Alert, at, err))
	}
	for _, a := range rule.ActiveAlerts() {
		if a.State == rules.StateFiring {
			firing = append(firing, a)
		}
	}
	return firing
}
