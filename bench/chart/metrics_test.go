package chart

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/proxy/access"
	proxyaudit "github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	proxymetrics "github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

var promQL = parser.NewParser(parser.Options{})

// The alerts and the dashboard ask for metrics that the proxy serves, by labels that these metrics
// have. metrics.md lists them.
func TestMetrics(t *testing.T) {
	known, rules, panels := metrics(t), map[string]string{}, readDashboard(t).queries
	for _, r := range alerts(t) {
		rules[r.Alert] = r.Expr
	}
	queries := maps.Clone(rules)
	maps.Copy(queries, panels)
	for where, query := range queries {
		expr, err := promQL.ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, query)
			continue
		}
		checkQuery(t, where, expr, known)
	}
	writeTable(t, "metrics.md", reference(known, map[string]map[string]string{"alerts": rules, "dashboard": panels}))
}

func checkQuery(t *testing.T, where string, expr parser.Expr, known map[string]*dto.MetricFamily) {
	t.Helper()
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		labels, ok := labelsOf(selector.Name, known)
		if !ok {
			t.Errorf("%s: the proxy serves no metric %s", where, selector.Name)
			return nil
		}
		used := map[string]bool{}
		for _, m := range selector.LabelMatchers {
			used[m.Name] = m.Name != model.MetricNameLabel
		}
		for _, around := range path {
			if by, ok := around.(*parser.AggregateExpr); ok && !by.Without {
				for _, name := range by.Grouping {
					used[name] = true
				}
			}
		}
		for name, is := range used {
			if is && !slices.Contains(labels, name) {
				t.Errorf("%s: metric %s has no label %s, but %v", where, selector.Name, name, labels)
			}
		}
		if !used[model.JobLabel] && !strings.HasPrefix(where, "variable ") {
			t.Errorf("%s: metric %s of every job is asked for", where, selector.Name)
		}
		return nil
	})
}

// labelsOf returns the labels of a series, including those that a scrape adds.
func labelsOf(series string, known map[string]*dto.MetricFamily) (labels []string, ok bool) {
	labels = []string{model.JobLabel, model.InstanceLabel, "namespace", "pod"} // the chart's monitors add the last two
	if series == "up" {                                                        // created by Prometheus itself
		return labels, true
	}
	name, part := series, ""
	if of := regexp.MustCompile(`^(.+)_(bucket|sum|count)$`).FindStringSubmatch(series); of != nil && known[series] == nil {
		name, part = of[1], of[2]
	}
	family := known[name]
	if family == nil || part != "" && family.GetType() != dto.MetricType_HISTOGRAM {
		return nil, false
	}
	if part == "bucket" {
		labels = append(labels, model.BucketLabel)
	}
	return append(labels, ownLabels(family)...), true
}

// ownLabels returns the labels of a metric, sorted.
func ownLabels(family *dto.MetricFamily) []string {
	names := map[string]bool{}
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			names[l.GetName()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// dashboard is the part of the dashboard that names metrics and panels.
type dashboard struct {
	uid     string
	queries map[string]string
	panels  map[string]bool // by id
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	d := dashboard{queries: map[string]string{}, panels: map[string]bool{}}
	// Grafana replaces the variables.
	replaced := strings.NewReplacer("$__rate_interval", "5m", "$job", "watchproxy", "$namespace", ".*", "$pod", ".*")
	values := regexp.MustCompile(`^label_values\((\w+(?:\{.*\})?), (\w+)\)$`)
	var walk func(part any)
	walk = func(part any) {
		list, _ := part.([]any)
		for _, below := range list {
			walk(below)
		}
		object, _ := part.(map[string]any)
		for name, below := range object {
			text, _ := below.(string)
			switch {
			case name == "id":
				d.panels[fmt.Sprint(below)] = true
			case name == "expr":
				d.queries["query "+text] = replaced.Replace(text)
			case name == "definition" && text != "":
				d.queries["variable "+text] = replaced.Replace(values.ReplaceAllString(text, "group by ($2) ($1)"))
			}
			walk(below)
		}
	}
	whole := readYAML[map[string]any](t, filepath.Join(chartDir(), "dashboards", "watchproxy.json"))
	d.uid = whole["uid"].(string)
	walk(whole)
	return d
}

// reference returns the table of metrics.md. Queries are by place, and then by name.
func reference(known map[string]*dto.MetricFamily, queries map[string]map[string]string) string {
	var text strings.Builder
	text.WriteString("| Metric | Type | Labels | Meaning | Used by |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !strings.HasPrefix(name, "watchproxy_") && !strings.HasPrefix(name, "rest_client_") {
			continue // a library's
		}
		var labels, used []string
		for _, label := range ownLabels(known[name]) {
			labels = append(labels, "`"+label+"`")
		}
		of := regexp.MustCompile(`\b` + name + `(_bucket|_sum|_count)?\b`)
		for _, place := range slices.Sorted(maps.Keys(queries)) {
			if slices.ContainsFunc(slices.Collect(maps.Values(queries[place])), of.MatchString) {
				used = append(used, place)
			}
		}
		kind := strings.ToLower(known[name].GetType().String())
		help := strings.ReplaceAll(known[name].GetHelp(), "|", "\\|")
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s | %s |\n", name, kind, strings.Join(labels, ", "), help, strings.Join(used, ", "))
	}
	return text.String()
}

// metrics returns all metrics that the proxy can serve, by name: those of a proxy that has answered
// a request, and those that appear only with their first count.
func metrics(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	registry := &touching{Registry: prometheus.NewRegistry()}
	proxymetrics.New(registry).Lag(exchange.Route{})
	certificate, _, err := cert.GenerateSelfSignedCertKey("client", nil, nil)
	must(t, err)
	registry.Registry.MustRegister(&access.Expiries{Upstream: []*rest.Config{{TLSClientConfig: rest.TLSClientConfig{CertData: certificate}}}})
	defer derived.New(1, registry).Close()
	audit.HandlePluginError("log", errors.New("for the metric"))
	proxyaudit.Register(registry.Registry)
	upstream.NewMetrics(registry)
	for _, c := range registry.collectors {
		touch(t, c)
	}
	gathered, err := registry.Gather()
	must(t, err)

	w := sharedWorld(t)
	p := w.proxyWithRights(t, `{}`)
	_, err = p.Client(w.api.Token).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	format := expfmt.NewTextParser(model.LegacyValidation)
	all, err := format.TextToMetricFamilies(strings.NewReader(string(p.MetricsT(t))))
	must(t, err)
	for _, f := range gathered {
		all[f.GetName()] = f
	}
	return all
}

// touching records the collectors that are registered.
type touching struct {
	*prometheus.Registry
	collectors []prometheus.Collector
}

func (r *touching) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
	r.Registry.MustRegister(all...)
}

// touch makes a metric with labels visible, because it appears only after its first count.
func touch(t *testing.T, c prometheus.Collector) {
	t.Helper()
	const most = 10 // maximum number of labels
	var labels []string
	for range most {
		labels = append(labels, "x")
		var err error
		switch c := c.(type) {
		case *prometheus.CounterVec:
			_, err = c.GetMetricWithLabelValues(labels...)
		case *prometheus.GaugeVec:
			_, err = c.GetMetricWithLabelValues(labels...)
		case *prometheus.HistogramVec:
			_, err = c.GetMetricWithLabelValues(labels...)
		}
		if err == nil {
			return
		}
	}
	t.Fatalf("%T has more than %d labels", c, most)
}
