package chart

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/proxy/access"
	proxyaudit "github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	proxymetrics "github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

var promQL = parser.NewParser(parser.Options{})

func TestMetrics(t *testing.T) {
	known := metrics(t)
	t.Run("named well", func(t *testing.T) { testNames(t, known) })
	t.Run("asked for", func(t *testing.T) { testQueries(t, known) })
	t.Run("documented", func(t *testing.T) { testReference(t, known) })
	t.Run("shown", func(t *testing.T) { testPanels(t, known) })
}

// The name, type and help text of every metric follow Prometheus' rules.
func testNames(t *testing.T, known map[string]*dto.MetricFamily) {
	var ours []*dto.MetricFamily
	for name, family := range known {
		if isOurs(name) {
			ours = append(ours, family)
		}
	}
	problems, err := promlint.NewWithMetricFamilies(ours).Lint()
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// The alerts and the dashboard use only metrics that the proxy serves, and labels that these
// metrics have.
func testQueries(t *testing.T, known map[string]*dto.MetricFamily) {
	queries := dashboardQueries(t)
	for _, r := range alerts(t) {
		queries[r.Alert] = r.Expr
	}
	for where, query := range queries {
		expr, err := promQL.ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, query)
			continue
		}
		checkQuery(t, where, expr, known)
	}
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
	family, ok := known[series]
	if !ok {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if family = known[strings.TrimSuffix(series, suffix)]; family.GetType() == dto.MetricType_HISTOGRAM && strings.HasSuffix(series, suffix) {
				ok = true
				break
			}
		}
		if strings.HasSuffix(series, "_bucket") {
			labels = append(labels, model.BucketLabel)
		}
	}
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName())
		}
	}
	slices.Sort(labels)
	return slices.Compact(labels), ok
}

// dashboardQueries returns the dashboard's queries, by the title of their panel.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir(), "dashboards", "watchproxy.json"))
	must(t, err)
	var dashboard struct {
		Panels []struct {
			ID          int    `json:"id"`
			Type        string `json:"type"`
			Title       string `json:"title"`
			Description string `json:"description"`
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ RefID, Expr string }
		} `json:"panels"`
		Templating struct {
			List []struct{ Name, Definition string } `json:"list"`
		} `json:"templating"`
		Annotations struct {
			List []struct{ Name, Expr string } `json:"list"`
		} `json:"annotations"`
	}
	must(t, json.Unmarshal(text, &dashboard))
	queries := map[string]string{}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("panel %s: another one has the id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panel %s lies over %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && (len(p.Targets) == 0 || p.Description == "") {
			t.Errorf("panel %s shows nothing, or has no description", p.Title)
		}
		for _, of := range regexp.MustCompile(`Watchproxy\w+`).FindAllString(p.Description, -1) {
			if !slices.ContainsFunc(alerts(t), func(r rulefmt.Rule) bool { return r.Alert == of }) {
				t.Errorf("panel %s: there is no alert %s", p.Title, of)
			}
		}
		for _, q := range p.Targets {
			queries["panel "+p.Title+", "+q.RefID] = q.Expr
		}
	}
	for _, r := range alerts(t) {
		if id, err := strconv.Atoi(r.Annotations["__panelId__"]); err != nil || !ids[id] {
			t.Errorf("%s: there is no panel %s", r.Alert, r.Annotations["__panelId__"])
		}
	}
	for _, a := range dashboard.Annotations.List {
		queries["annotation "+a.Name] = a.Expr
	}
	values := regexp.MustCompile(`^label_values\((\w+(?:\{.*\})?), (\w+)\)$`)
	for _, v := range dashboard.Templating.List {
		if v.Definition == "" {
			continue
		}
		parts := values.FindStringSubmatch(v.Definition)
		if parts == nil {
			t.Fatalf("variable %s: %s", v.Name, v.Definition)
		}
		queries["variable "+v.Name] = "group by (" + parts[2] + ") (" + parts[1] + ")"
	}
	// Grafana replaces the variables.
	for where, query := range queries {
		if fixed := regexp.MustCompile(`(rate|increase)\([^$]*\[\d+\w\]`).FindString(query); fixed != "" {
			t.Errorf("%s: %s does not follow the dashboard's resolution", where, fixed)
		}
		queries[where] = strings.NewReplacer("$__rate_interval", "5m", "$job", "watchproxy", "$namespace", ".*", "$pod", ".*").Replace(query)
	}
	return queries
}

// metrics returns all metrics that the proxy can serve, by name. They include metrics that have not
// counted anything yet.
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
	client := w.client(t, p)
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	var text cluster.Metrics
	cluster.Eventually(t, "the requests count", func() bool {
		text = p.MetricsT(t)
		const written = "watchproxy_request_duration_seconds_count"
		return text.Sum(written, `source="cache"`) > 0 && text.Sum(written, `source="upstream"`) > 0
	})
	format := expfmt.NewTextParser(model.LegacyValidation)
	all, err := format.TextToMetricFamilies(strings.NewReader(string(text)))
	must(t, err)
	for _, f := range gathered {
		if served := all[f.GetName()]; served != nil {
			f.Metric = append(slices.DeleteFunc(f.GetMetric(), func(m *dto.Metric) bool {
				return slices.ContainsFunc(served.GetMetric(), func(other *dto.Metric) bool { return sameLabels(m, other) })
			}), served.GetMetric()...)
		}
		all[f.GetName()] = f
	}
	return all
}

func sameLabels(a, b *dto.Metric) bool {
	return slices.EqualFunc(a.GetLabel(), b.GetLabel(), func(a, b *dto.LabelPair) bool {
		return a.GetName() == b.GetName() && a.GetValue() == b.GetValue()
	})
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
