package main

import (
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// Figures are for a unit of work, also after several rounds. Ratios have the right direction.
func TestReport(t *testing.T) {
	ms := []float64{3, 1, 2, 9}
	samples := map[string]sample{
		kubeAPIServer: sample{units: 1, cpu: time.Second, ms: ms}.and(sample{units: 1, cpu: time.Second}),
		before:        {units: 10, cpu: time.Second, ms: []float64{7}},
		ours:          {units: 100, cpu: 5 * time.Second, ms: []float64{4}},
		floor:         {units: 10, cpu: 400 * time.Millisecond},
	}
	var out strings.Builder
	r := &report{header: "header", results: []result{{measurement{group: "g", name: "n", figures: []figure{cpu, p50, added}}, samples}}}
	r.print(&out)
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"header",
		"g: n processor time, ms 1000 100 50 40 20.00 × 0.50 × 1.25 ×",
		"g: n median, ms 3 7 4 0.75 × 0.57 ×",
		"g: n median that the server adds, ms 4 1 -3 0.25 ×",
	} {
		if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+want+"\n") {
			t.Errorf("%q is missing in\n%s", want, strings.Join(got, "\n"))
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	cmd := newCommand()
	cmd.SetArgs(strings.Fields("--pods=0 --each=1ms --only=( --watchproxy=/nowhere --before=/else"))
	err := cmd.Execute()
	for _, want := range []string{"--pods=0", "--each=1ms", "--only", "/nowhere", "/else"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in: %v", want, err)
		}
	}
}
