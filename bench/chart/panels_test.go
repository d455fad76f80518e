package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// isOurs reports whether the proxy defines a metric itself. Libraries define the others (go_,
// process_).
func isOurs(name string) bool {
	return strings.HasPrefix(name, "watchproxy_") || strings.HasPrefix(name, "rest_client_")
}

const referenceHead = `# Metrics

All metrics of the proxy, with their labels. ` + "`go_*` and `process_*`" + ` come from Prometheus' Go library.
Histograms have classic buckets. Those of requests, reviews and proofs also have native ones, which
Prometheus scrapes if it is told to. Then let it scrape the classic ones too
(` + "`always_scrape_classic_histograms`" + `), which the alerts and the dashboard use. Delivery lags have
classic buckets only.
With ` + "`audit`" + `, there are also the apiserver's ` + "`apiserver_audit_*`" + `.
[BOUNDS.md](../../cmd/watchproxy/BOUNDS.md) tells what bounds the labels. The last column tells
where the chart uses a metric. This table is generated: ` + "`go test -run TestMetrics . -update`" + ` in bench/chart.

| Metric | Type | Labels | Meaning | Used by |
|---|---|---|---|---|
`

// The reference lists every metric, and every metric is in the dashboard or in an alert.
func testReference(t *testing.T, known map[string]*dto.MetricFamily) {
	panels, rules := dashboardQueries(t), map[string]string{}
	for _, r := range alerts(t) {
		rules[r.Alert] = r.Expr
	}
	var text strings.Builder
	text.WriteString(referenceHead)
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !isOurs(name) {
			continue
		}
		family := known[name]
		var labels []string
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(labels, "`"+l.GetName()+"`") {
					labels = append(labels, "`"+l.GetName()+"`")
				}
			}
		}
		slices.Sort(labels)
		of := regexp.MustCompile(`\b` + name + `(_bucket|_sum|_count)?\b`)
		var used []string
		for where, among := range map[string]map[string]string{"alerts": rules, "dashboard": panels} {
			for _, query := range among {
				if of.MatchString(query) {
					used = append(used, where)
					break
				}
			}
		}
		slices.Sort(used)
		if len(used) == 0 && !slices.Contains(unshown, name) {
			t.Errorf("%s is in no panel and no alert", name)
		}
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s | %s |\n", name, strings.ToLower(family.GetType().String()), strings.Join(labels, ", "),
			strings.ReplaceAll(family.GetHelp(), "|", "\\|"), strings.Join(used, ", "))
	}
	path := filepath.Join(chartDir(), "metrics.md")
	if *update {
		must(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	if written, err := os.ReadFile(path); err != nil || string(written) != text.String() {
		t.Errorf("metrics.md differs from the metrics (%v): go test -run TestMetrics . -update", err)
	}
}

// unshown are metrics for people who look for the cause of something.
var unshown = []string{
	"watchproxy_feed_resource_version", // not a quantity: compare it with upstream's
	"watchproxy_feed_watches",          // watchproxy_watches has the same by resource, without feeds that end
	"watchproxy_review_cache_bytes", "watchproxy_review_cache_entries", "watchproxy_review_cache_hits_total", "watchproxy_reviews_refused_total",
}

// testPanels runs all queries of the dashboard in Prometheus' own engine, on series of all metrics.
// Each query has a result.
func testPanels(t *testing.T, known map[string]*dto.MetricFamily) {
	prometheus := newPrometheus(t, seriesOf(known))
	for where, query := range dashboardQueries(t) {
		if strings.HasPrefix(where, "annotation ") {
			continue // TestStartsAreMarked
		}
		found, err := prometheus.query(t.Context(), query, time.Unix(0, 0).Add(time.Hour))
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		if len(found) == 0 {
			t.Errorf("%s finds nothing: %s", where, query)
		}
	}
}

// The panel to which WatchproxyDown links shows 0, not nothing, if no pod can be scraped.
func TestPanelOfNoPods(t *testing.T) {
	prometheus := newPrometheus(t, `
		up{job="watchproxy",`+pod+`} 0x60`)
	found, err := prometheus.query(t.Context(), dashboardQueries(t)["panel Pods, A"], time.Unix(0, 0).Add(time.Hour))
	if err != nil || len(found) != 1 || found[0].F != 0 {
		t.Errorf("%v, %v", found, err)
	}
}

// The dashboard marks the start of a pod's process, and nothing else.
func TestStartsAreMarked(t *testing.T) {
	prometheus := newPrometheus(t, `
		process_start_time_seconds{job="watchproxy",`+pod+`} 5x29 1800x30
		process_start_time_seconds{job="other",`+pod+`} 5x24 1500x35`)
	for at, want := range map[time.Duration]int{20 * time.Minute: 0, 25 * time.Minute: 0, 30 * time.Minute: 1, 40 * time.Minute: 0} {
		found, err := prometheus.query(t.Context(), dashboardQueries(t)["annotation Starts"], time.Unix(0, 0).Add(at))
		if err != nil || len(found) != want {
			t.Errorf("after %v: %v, %v, want %d starts", at, found, err, want)
		}
	}
}

// seriesOf returns a series for each sample of metrics: counters grow, and gauges are 1.
func seriesOf(known map[string]*dto.MetricFamily) string {
	var b strings.Builder
	b.WriteString("\t\tup{job=\"watchproxy\"," + pod + "} 1x60\n")
	seen := map[string]bool{}
	add := func(name string, m *dto.Metric, extra, values string) {
		series := name + `{job="watchproxy",` + pod
		for _, l := range m.GetLabel() {
			series += fmt.Sprintf(",%s=%q", l.GetName(), l.GetValue())
		}
		if series += extra + "}"; !seen[series] {
			seen[series] = true
			b.WriteString("\t\t" + series + " " + values + "\n")
		}
	}
	for name, family := range known {
		for _, m := range family.GetMetric() {
			switch {
			case m.Histogram != nil:
				for i, bucket := range m.GetHistogram().GetBucket() {
					add(name+"_bucket", m, fmt.Sprintf(",le=\"%v\"", bucket.GetUpperBound()), fmt.Sprintf("0+%dx60", i+1))
				}
				all := fmt.Sprintf("0+%dx60", len(m.GetHistogram().GetBucket())+1)
				add(name+"_bucket", m, `,le="+Inf"`, all)
				add(name+"_count", m, "", all)
				add(name+"_sum", m, "", all)
			case m.Counter != nil:
				add(name, m, "", "0+1x60")
			case name == "watchproxy_feed_synced": // a panel shows feeds that are not
				add(name, m, "", "0x60")
			default:
				add(name, m, "", "1x60")
			}
		}
	}
	return b.String()
}

// Each alert has a section in the runbook with the steps that people need at night, and links to
// it.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir(), "runbook.md"))
	must(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	const runbook = "https://github.com/watchproxy/watchproxy/blob/main/charts/watchproxy/runbook.md#"
	for _, r := range alerts(t) {
		for _, part := range []string{"**Meaning.**", "**Impact.**", "**Diagnosis.**", "**Mitigation.**"} {
			if !strings.Contains(sections[r.Alert], part) {
				t.Errorf("%s: the runbook has no %s", r.Alert, part)
			}
		}
		if got := r.Annotations["runbook_url"]; got != runbook+strings.ToLower(r.Alert) {
			t.Errorf("%s links to %s", r.Alert, got)
		}
		delete(sections, r.Alert)
	}
	delete(sections, "Objectives")
	for title := range sections {
		t.Errorf("the runbook has a section %s without an alert", title)
	}
	for _, link := range regexp.MustCompile(`\]\(#(\w+)\)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.ToLower(line) == "## "+link[1] }) {
			t.Errorf("the runbook links to %s, which is no section", link[1])
		}
	}
	// A panel that the runbook names exists.
	titles := map[string]bool{}
	for where := range dashboardQueries(t) {
		title, _, _ := strings.Cut(strings.TrimPrefix(where, "panel "), ", ")
		titles[title] = true
	}
	for _, named := range regexp.MustCompile(`\b_([A-Z][^_]+)_`).FindAllStringSubmatch(strings.ReplaceAll(string(text), "\n", " "), -1) {
		if !titles[named[1]] {
			t.Errorf("the dashboard has no panel %q", named[1])
		}
	}
}
