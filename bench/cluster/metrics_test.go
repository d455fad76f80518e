package cluster

import "testing"

func TestMetricsSum(t *testing.T) {
	const m Metrics = `# HELP requests Some.
requests{group="",resource="pods",verb="LIST"} 2
requests{group="",resource="pods",verb="WATCH"} 1.5e+01
requests{group="",resource="podsets",verb="LIST"} 4
requests{subresource="",group="apps",resource="pods",verb="LIST"} 8
requests{resource="a } b",verb="PUT"} 16
requests_seconds{resource="pods"} 1000
requests_total 1000
bytes 3.2e+07
bytes_max 1
`
	for _, test := range []struct {
		metric string
		labels []string
		want   float64
	}{
		{"requests", nil, 45},
		{"requests", []string{`resource="pods"`}, 25},
		{"requests", []string{`group=""`, `resource="pods"`}, 17},
		{"requests", []string{`verb="PUT"`}, 16},
		{"requests", []string{`verb="GET"`}, 0},
		{"bytes", nil, 3.2e7},
		{"bytes", []string{`resource="pods"`}, 0},
		{"byte", nil, 0},
		{"none", nil, 0},
	} {
		if got := m.Sum(test.metric, test.labels...); got != test.want {
			t.Errorf("%s%q is %v, want %v", test.metric, test.labels, got, test.want)
		}
	}
}
