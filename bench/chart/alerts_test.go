package chart

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// alerts returns the alerts in the chart's files. An alert on recording rules gets their expressions
// instead.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	all, recorded := alertsAndRecords(t)
	of := regexp.MustCompile(`(watchproxy:[a-z_:]+[0-9]+[a-z])\{job="watchproxy"\}`)
	for i := range all {
		all[i].Expr = of.ReplaceAllStringFunc(all[i].Expr, func(selector string) string {
			return "(" + recorded[of.FindStringSubmatch(selector)[1]] + ")"
		})
	}
	return all
}

// alertsAndRecords returns the alerts in the chart's files, and the recorded expressions. Prometheus can
// load these files directly.
func alertsAndRecords(t *testing.T) (all []rulefmt.Rule, recorded map[string]string) {
	t.Helper()
	recorded = map[string]string{}
	for _, name := range []string{"watchproxy.yaml", "slo.yaml"} {
		file, errs := rulefmt.ParseFile(filepath.Join(chartDir(), "alerts", name), false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				if r.Record != "" {
					recorded[r.Record] = r.Expr
					continue
				}
				all = append(all, r)
			}
		}
	}
	return all, recorded
}

// The windows of an objective differ only in their length.
func TestWindows(t *testing.T) {
	_, recorded := alertsAndRecords(t)
	of, first := regexp.MustCompile(`^(.+:ratio_rate)(\w+)$`), map[string]string{}
	for name, expr := range recorded {
		parts := of.FindStringSubmatch(name)
		if parts == nil || !strings.Contains(expr, "["+parts[2]+"]") {
			t.Errorf("%s has no such window: %s", name, expr)
			continue
		}
		expr = strings.ReplaceAll(expr, "["+parts[2]+"]", "[window]")
		if as, ok := first[parts[1]]; ok && as != expr {
			t.Errorf("%s is\n%s\nand another window is\n%s", name, expr, as)
		}
		first[parts[1]] = expr
	}
}

// course is a set of series, with a sample a minute, and the time at which an alert first fires.
// The series use the notation of Prometheus' own tests: 1x5 is six samples of 1, and 0+2x3 is 0, 2,
// 4, 6.
type course struct {
	series string
	fires  time.Duration
	of     string // a label of the firing alert
}

// pod is the labels of a pod's series, as the chart's monitors make them.
const pod = `namespace="ns",pod="p",instance="a"`

// feed is the labels of a cache's series.
const feed = `job="watchproxy",` + pod + `,group="",version="v1",resource="pods"`

var courses = map[string]course{
	"WatchproxyDown": {`
		up{job="watchproxy",` + pod + `} 1x9 0x20
		up{job="other",instance="b"} 1x30`, 15 * time.Minute, `job="watchproxy"`},
	"WatchproxyUpstreamDown": {`
		watchproxy_upstream_server_usable{job="watchproxy",` + pod + `,server="https://10.0.0.1:6443"} 1x9 0x20
		watchproxy_upstream_server_usable{job="watchproxy",` + pod + `,server="https://10.0.0.2:6443"} 0x4 1x5 0x20`, 12 * time.Minute, `pod="p"`},
	"WatchproxyUpstreamServerUnusable": {`
		watchproxy_upstream_server_usable{job="watchproxy",` + pod + `,server="https://10.0.0.1:6443"} 1x30
		watchproxy_upstream_server_usable{job="watchproxy",` + pod + `,server="https://10.0.0.2:6443"} 1x4 0x30`, 15 * time.Minute, `server="https://10.0.0.2:6443"`},
	"WatchproxyReviewsFail": {`
		watchproxy_review_duration_seconds_count{job="watchproxy",` + pod + `,resource="tokenreviews",code="201"} 0+60x40
		watchproxy_review_duration_seconds_count{job="watchproxy",` + pod + `,resource="tokenreviews",code="0"} 0x20 60+60x20`, 26 * time.Minute, `instance="a"`},
	"WatchproxyFeedStale": {`
		watchproxy_feed_synced{` + feed + `,encoding="json"} 1x30
		watchproxy_feed_last_sign_timestamp_seconds{` + feed + `,encoding="json"} 0+60x9 540x20
		watchproxy_feed_synced{` + strings.Replace(feed, "pods", "nodes", 1) + `,encoding="json"} 0x30
		watchproxy_feed_last_sign_timestamp_seconds{` + strings.Replace(feed, "pods", "nodes", 1) + `,encoding="json"} 0x30`, 17 * time.Minute, `resource="pods"`},
	"WatchproxyFeedNotSynced": {`
		watchproxy_feed_synced{` + feed + `,encoding="json"} 1x4 0x30`, 15 * time.Minute, `resource="pods"`},
	"WatchproxyRelists": {`
		watchproxy_feed_relists_total{` + feed + `,reason="no-streaming"} 0+5x60
		watchproxy_feed_relists_total{` + feed + `,reason="expired"} 0x9 1+1x40`, 18 * time.Minute, `resource="pods"`},
	"WatchproxyExpired": {`
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="list",code="200",source="cache"} 0+600x60
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="get",code="410",source="upstream"} 0+600x60
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="watch",code="410",source="cache"} 0x20 60+60x40`, 36 * time.Minute, `job="watchproxy"`},
	"WatchproxyMemoryNearLimit": {`
		go_gc_gomemlimit_bytes{job="watchproxy",` + pod + `} 1000x40
		watchproxy_memory_in_use_bytes{job="watchproxy",` + pod + `} 690x9 720x30`, 25 * time.Minute, `instance="a"`},
	"WatchproxyMemoryShort": {`
		watchproxy_caching_paused{job="watchproxy",` + pod + `} 0x9 1x30`, 15 * time.Minute, `instance="a"`},
	"WatchproxyWatchesDropped": {`
		watchproxy_watches{job="watchproxy",` + pod + `,resource="pods"} 500x29 stale`, 32 * time.Minute, `job="watchproxy"`},
	"WatchproxyRequestsLimited": {`
		watchproxy_requests_refused_total{job="watchproxy",` + pod + `,limit="user_watches"} 0x9 60+60x30`, 20 * time.Minute, `limit="user_watches"`},
	"WatchproxyErrors": {`
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="get",code="200",source="cache"} 0+600x60
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="get",code="503",source="proxy"} 0x20 60+60x40`, 33 * time.Minute, `source="proxy"`},
	"WatchproxyFreshnessFails": {`
		watchproxy_freshness_runs_total{` + feed + `,outcome="current"} 0+60x60
		watchproxy_freshness_runs_total{` + feed + `,outcome="failed"} 0x9 60+60x50`, 22 * time.Minute, `resource="pods"`},
	"WatchproxyCacheDiffered": {`
		watchproxy_self_checks_total{` + feed + `,outcome="same"} 1+1x60
		watchproxy_self_checks_total{` + feed + `,outcome="different"} _x9 1x60`, 9 * time.Minute, `resource="pods"`},
	"WatchproxyConfigRefused": {`
		watchproxy_config_refused{job="watchproxy",` + pod + `} 0x9 1x30`, 20 * time.Minute, `instance="a"`},
	"WatchproxyPanics": {`
		watchproxy_panics_total{job="watchproxy",` + pod + `,place="watch"} 0x9 1x30`, 10 * time.Minute, `place="watch"`},
	"WatchproxyConnectionsRefused": {`
		watchproxy_connections_refused_total{job="watchproxy",` + pod + `,reason="limit"} 0x9 60+60x30`, 20 * time.Minute, `reason="limit"`},
	"WatchproxyServingCertificateExpires": {`
		watchproxy_serving_certificate_expiration_timestamp_seconds{job="watchproxy",` + pod + `} 605400x120`, 71 * time.Minute, `pod="p"`},
	"WatchproxyServingCertificateExpiresToday": {`
		watchproxy_serving_certificate_expiration_timestamp_seconds{job="watchproxy",` + pod + `} 87000x120`, 16 * time.Minute, `pod="p"`},
	"WatchproxyClientCertificateExpires": {`
		watchproxy_upstream_client_certificate_expiration_timestamp_seconds{job="watchproxy",` + pod + `,origin="exec"} 0x120
		watchproxy_upstream_client_certificate_expiration_timestamp_seconds{job="watchproxy",` + pod + `,origin="kubeconfig"} 87000x120`, 71 * time.Minute, `pod="p"`},
	"WatchproxyErrorsBurnFast": {`
		watchproxy_requests_total{job="watchproxy",` + pod + `,verb="get",code="200",source="cache"} 0+600x200
		watchproxy_requests_total{job="watchproxy",` + pod + `,verb="get",code="500",source="upstream"} 0+600x200
		watchproxy_requests_total{job="watchproxy",` + pod + `,verb="get",code="503",source="proxy"} 0x60 120+120x140`, 66 * time.Minute, `namespace="ns"`},
	"WatchproxyErrorsBurnSlow": {`
		watchproxy_requests_total{job="watchproxy",` + pod + `,verb="get",code="200",source="cache"} 0+600x800
		watchproxy_requests_total{job="watchproxy",` + pod + `,verb="get",code="503",source="proxy"} 0x60 3+3x740`, 91 * time.Minute, `namespace="ns"`},
	"WatchproxyLatencyBurnFast": {durations(600, 120), 101 * time.Minute, `namespace="ns"`},
	"WatchproxyLatencyBurnSlow": {durations(600, 24), 99 * time.Minute, `namespace="ns"`},
	"WatchproxyLagBurnFast":     {lags(600, 120), 96 * time.Minute, `namespace="ns"`},
	"WatchproxyLagBurnSlow":     {lags(600, 24), 97 * time.Minute, `namespace="ns"`},
	"WatchproxyAuditFails": {`
		apiserver_audit_error_total{job="watchproxy",` + pod + `,plugin="log"} _x9 1x60`, 11 * time.Minute, `plugin="log"`},
}

// usual is two hours of usual work, with a fault now and then.
var usual = `
		up{job="watchproxy",` + pod + `} 1x120
		watchproxy_upstream_server_usable{job="watchproxy",` + pod + `,server="https://10.0.0.1:6443"} 1x50 0 1x69
		watchproxy_feed_last_sign_timestamp_seconds{` + feed + `,encoding="json"} 0+60x120
		watchproxy_serving_certificate_expiration_timestamp_seconds{job="watchproxy",` + pod + `} 2592000x120
		watchproxy_upstream_client_certificate_expiration_timestamp_seconds{job="watchproxy",` + pod + `,origin="exec"} 3600+60x120
		watchproxy_panics_total{job="watchproxy",` + pod + `,place="watch"} 0x120` + durations(600, 0) + lags(600, 1) + `
		watchproxy_feed_synced{` + feed + `,encoding="json"} 0x2 1x118
		watchproxy_feed_relists_total{` + feed + `,reason="expired"} 0x60 1x30 2x30
		watchproxy_review_duration_seconds_count{job="watchproxy",` + pod + `,resource="tokenreviews",code="201"} 0+600x120
		watchproxy_review_duration_seconds_count{job="watchproxy",` + pod + `,resource="tokenreviews",code="0"} 0x60 3x60
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="list",code="200",source="cache"} 0+600x120
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="list",code="410",source="cache"} 0+6x120
		watchproxy_requests_total{job="watchproxy",namespace="ns",verb="get",code="503",source="proxy"} 0+0.2x120
		watchproxy_requests_refused_total{job="watchproxy",` + pod + `,limit="forwards"} 0x60 5x60
		watchproxy_watches{job="watchproxy",` + pod + `,resource="pods"} 500x60 400x60
		watchproxy_freshness_runs_total{` + feed + `,outcome="current"} 0+60x120
		watchproxy_freshness_runs_total{` + feed + `,outcome="failed"} 0+1x120
		watchproxy_self_checks_total{` + feed + `,outcome="same"} 1x60 2x60
		watchproxy_self_checks_total{` + feed + `,outcome="inconclusive"} _x60 1x60
		watchproxy_self_checks_total{` + feed + `,outcome="different"} 0x120
		watchproxy_memory_in_use_bytes{job="watchproxy",` + pod + `} 640x120
		go_gc_gomemlimit_bytes{job="watchproxy",` + pod + `} 1000x120
		process_resident_memory_bytes{job="watchproxy",` + pod + `} 990x120`

// durations are the series of answers from the cache, good and bad ones a minute from the second
// hour on. All lists of the cluster take ten seconds, which is in time.
func durations(good, bad int) string {
	return histogram("watchproxy_request_duration_seconds", `verb="get",scope="resource",source="cache"`, "1.0", good, bad) +
		histogram("watchproxy_request_duration_seconds", `verb="list",scope="cluster",source="cache"`, "30.0", 60, 0) +
		histogram("watchproxy_request_duration_seconds", `verb="get",scope="resource",source="upstream"`, "1.0", 0, 6000)
}

// lags are the series of deliveries. Slow clients do not count.
func lags(good, bad int) string {
	return histogram("watchproxy_watch_delivery_lag_seconds", `resource="pods",client="prompt"`, "1", good, bad) +
		histogram("watchproxy_watch_delivery_lag_seconds", `resource="pods",client="slow"`, "1", 0, 6000)
}

func histogram(name, labels, bound string, good, bad int) string {
	const of = `
		%s_%s{job="watchproxy",` + pod + `,%s} 0+%dx60 %d+%dx1000`
	return fmt.Sprintf(of, name, "bucket", labels+`,le="`+bound+`"`, good+bad, (good+bad)*60+good, good) +
		fmt.Sprintf(of, name, "count", labels, good+bad, (good+bad)*61, good+bad)
}

// Each alert fires at its time, by its metric, with a label that names the place. Its annotations are
// complete, and lead to a section of the runbook and to a panel of the dashboard.
func TestAlerts(t *testing.T) {
	runbook, err := os.ReadFile(filepath.Join(chartDir(), "runbook.md"))
	must(t, err)
	dashboard := readDashboard(t)
	for _, r := range alerts(t) {
		t.Run(r.Alert, func(t *testing.T) {
			c := courses[r.Alert]
			firing := c.firing(t, r)
			if got := firing.Labels.String(); !strings.Contains(got, c.of) {
				t.Errorf("labels %s have no %s", got, c.of)
			}
			for _, name := range []string{"summary", "description"} {
				text := firing.Annotations.Get(name)
				if text == "" || strings.Contains(text, "error expanding") || strings.Contains(text, "no value") {
					t.Errorf("%s: %q", name, text)
				}
			}
			_, section, _ := strings.Cut(r.Annotations["runbook_url"], "/charts/watchproxy/runbook.md#")
			if section != strings.ToLower(r.Alert) || !strings.Contains(string(runbook), "\n## "+r.Alert+"\n") {
				t.Errorf("the runbook has no section %s", r.Annotations["runbook_url"])
			}
			if uid, id := r.Annotations["__dashboardUid__"], r.Annotations["__panelId__"]; uid != dashboard.uid || !dashboard.panels[id] {
				t.Errorf("the dashboard %s has no panel %s of %s", dashboard.uid, id, uid)
			}
		})
	}
}

// No alert fires in usual work.
func TestAlertsAreQuiet(t *testing.T) {
	const hours = 2 * time.Hour
	for _, r := range alerts(t) {
		if at, firing := eval(t, r, usual, 0, hours); len(firing) > 0 {
			t.Errorf("%s fires after %s: %v", r.Alert, at, firing[0].Labels)
		}
	}
}

// A single fault that has been counted long ago lets no alert fire.
func TestAlertsEnd(t *testing.T) {
	once := regexp.MustCompile(` (_x9 1|0x9 1)x\d+`)
	for _, r := range alerts(t) {
		series := courses[r.Alert].series
		if !strings.Contains(series, "_total") || !once.MatchString(series) {
			continue
		}
		if at, firing := eval(t, r, once.ReplaceAllString(series, " ${1}x240"), 3*time.Hour, 4*time.Hour); len(firing) > 0 {
			t.Errorf("%s fires after %s: %v", r.Alert, at, firing[0].Labels)
		}
	}
}

// firing returns the only alert that fires. It must not fire before its time.
func (c course) firing(t *testing.T, r rulefmt.Rule) *rules.Alert {
	t.Helper()
	at, firing := eval(t, r, c.series, 0, c.fires)
	if at != c.fires || len(firing) != 1 {
		t.Fatalf("after %v, %d fire, want one after %v", at, len(firing), c.fires)
	}
	return firing[0]
}

// eval returns what fires first from a time until an end, by Prometheus' own engine.
func eval(t *testing.T, r rulefmt.Rule, series string, from, end time.Duration) (at time.Duration, firing []*rules.Alert) {
	t.Helper()
	loaded := promqltest.LoadedStorage(t, "load 1m\n"+strings.ReplaceAll(strings.TrimPrefix(series, "\n"), "\t\t", "  "))
	defer loaded.Close()
	const samples, lookback = 1_000_000, 5 * time.Minute
	options := promql.EngineOpts{MaxSamples: samples, Timeout: time.Minute, LookbackDelta: lookback, Parser: promQL}
	query := rules.EngineQueryFunc(promqltest.NewTestEngineWithOpts(t, options), loaded)
	expr, err := promQL.ParseExpr(r.Expr)
	must(t, err)
	rule := rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), time.Duration(r.KeepFiringFor), labels.FromMap(r.Labels),
		labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
	for at = from; at <= end; at += time.Minute {
		_, err := rule.Eval(t.Context(), 0, time.Unix(0, 0).Add(at), query, &url.URL{}, 0)
		must(t, err)
		firing = slices.DeleteFunc(rule.ActiveAlerts(), func(a *rules.Alert) bool { return a.State != rules.StateFiring })
		if len(firing) > 0 {
			break
		}
	}
	return at, firing
}
