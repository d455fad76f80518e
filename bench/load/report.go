package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// report has all measurements.
type report struct {
	Date    string `json:"date"`
	Commit  string `json:"commit"`
	Machine string `json:"machine"`
	// Groups is a regular expression for the measured groups of scenarios. If it is empty, all groups
	// were measured.
	Groups string `json:"groups,omitempty"`
	Pods   int    `json:"pods"`
	Rows   []row  `json:"rows"`
}

// newReport returns a report with the date, the commit and the machine.
func newReport(ctx context.Context, o *options) *report {
	r := &report{Date: time.Now().UTC().Format(time.DateOnly), Commit: "unknown", Groups: o.only, Pods: o.pods}
	git := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*")
	git.Dir = cluster.Root()
	if commit, err := git.Output(); err == nil {
		r.Commit = strings.TrimSpace(string(commit))
	}
	r.Machine = fmt.Sprintf("%s/%s, %d processors", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		r.Machine += processorModel(info)
	}
	return r
}

// model matches the processors' model in /proc/cpuinfo. ARM's processors have none there.
var model = regexp.MustCompile(`(?m)^model name\s*: (.+)$`)

// processorModel returns the model of the processors, after a comma, or "" if it is unknown.
func processorModel(cpuinfo []byte) string {
	if match := model.FindSubmatch(cpuinfo); match != nil {
		return ", " + strings.TrimSpace(string(match[1]))
	}
	return ""
}

// header is the first line of each report.
func (r *report) header() string {
	groups := ""
	if r.Groups != "" {
		groups = " --only " + r.Groups
	}
	return fmt.Sprintf("bench-load%s, %s, commit %s, %s.", groups, r.Date, r.Commit, r.Machine)
}

// write writes the report to a directory: as text and as JSON.
func (r *report) write(dir, about string) error {
	figures, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var text strings.Builder
	r.print(&text)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	files := map[string]string{"txt": text.String(), "json": string(figures) + "\n"}
	for kind, content := range files {
		if err := os.WriteFile(filepath.Join(dir, about+"."+kind), []byte(content), 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// row is one scenario.
type row struct {
	Scenario string           `json:"scenario"`
	Clients  int              `json:"clients"`
	Unit     string           `json:"unit"`
	Servers  map[string]spent `json:"servers"`
	Target   target           `json:"target"`
	// Value has the measured values of a row that is not about processor time.
	Value map[string]float64 `json:"value,omitempty"`
}

// values returns a row for other measurements of the same scenario.
func (r row) values(what, unit string) row {
	return row{Scenario: r.Scenario + ": " + what, Clients: r.Clients, Unit: unit, Value: map[string]float64{}}
}

// target has the proxy's target ratios. A zero value means that there is no target.
type target struct {
	// OfFloor is the maximum ratio of the proxy's value to the floor's value.
	OfFloor float64 `json:"ofFloor,omitempty"`
	// LessThanAPIServer is the minimum ratio of the apiserver's value to the proxy's value.
	LessThanAPIServer float64 `json:"lessThanAPIServer,omitempty"`
	AtMost            float64 `json:"atMost,omitempty"`
}

// ratio divides one server's time by another's. It returns 0 if one of them is unknown.
func (r row) ratio(one, other string) float64 {
	a, b := r.Servers[one], r.Servers[other]
	if a.Units == 0 || b.Units == 0 || b.each() == 0 {
		return 0
	}
	return a.each() / b.each()
}

// String implements fmt.Stringer.
func (r row) String() string {
	cells := r.cells()
	if len(r.Value) > 0 {
		cells = r.valueCells()
	}
	return fmt.Sprintf("%s, %d clients: %s", r.Scenario, r.Clients, strings.Join(cells, " | "))
}

func (r row) cells() []string {
	cells := []string{}
	for _, s := range []string{kubeAPIServer, ours, theFloor} {
		cells = append(cells, processorTime(r.Servers[s]))
	}
	less, of := r.ratio(kubeAPIServer, ours), r.ratio(ours, theFloor)
	return append(cells, times(less, r.Target.LessThanAPIServer, less >= r.Target.LessThanAPIServer), times(of, r.Target.OfFloor, of <= r.Target.OfFloor))
}

// times formats a ratio and its target.
func times(ratio, target float64, met bool) string {
	switch {
	case ratio == 0:
		return ""
	case target == 0:
		return fmt.Sprintf("%.1f ×", ratio)
	case met:
		return fmt.Sprintf("%.2f × (%g, met)", ratio, target)
	}
	return fmt.Sprintf("%.2f × (%g, MISSED)", ratio, target)
}

// processorTime formats the processor time of one unit.
func processorTime(s spent) string {
	if s.Units == 0 {
		return ""
	}
	const digits = 3
	d := time.Duration(s.each() * float64(time.Second))
	for unit := time.Duration(1); ; unit *= 10 {
		if d < unit*1000 {
			return d.Round(max(unit/10, 1)).String()
		}
		if unit > time.Hour {
			return strconv.FormatFloat(s.each(), 'g', digits, 64)
		}
	}
}

// print writes the report as text. Each output has the header, so that figures never lack their
// date, commit and machine.
func (r *report) print(w io.Writer) {
	fmt.Fprintln(w, r.header())
	t := &workload.Table{Left: 1, Rows: [][]string{{"SCENARIO", "CLIENTS", "UNIT", "KUBE-APISERVER", "WATCHPROXY", "FLOOR", "KUBE-APISERVER / WATCHPROXY", "WATCHPROXY / FLOOR"}}}
	for _, row := range r.Rows {
		if len(row.Servers) > 0 {
			t.Add(append([]string{row.Scenario, strconv.Itoa(row.Clients), row.Unit}, row.cells()...)...)
		}
	}
	if len(t.Rows) > 1 {
		fmt.Fprintf(w, "\nProcessor time of servers per unit of work, %d pods. The floor is a minimal server that sends prepared bytes. Targets are\n"+
			"in parentheses: a minimum for kube-apiserver / watchproxy, a maximum for watchproxy / floor.\n\n", r.Pods)
		t.Print(w)
		fmt.Fprintln(w)
		r.chart(w)
	}
	others := &workload.Table{Left: 1, Rows: [][]string{{"SCENARIO", "CLIENTS", "UNIT", "KUBE-APISERVER", "WATCHPROXY", "FLOOR", "TARGET"}}}
	for _, row := range r.Rows {
		if len(row.Value) > 0 {
			others.Add(append([]string{row.Scenario, strconv.Itoa(row.Clients), row.Unit}, row.valueCells()...)...)
		}
	}
	if len(others.Rows) > 1 {
		fmt.Fprintln(w)
		others.Print(w)
	}
}

// valueCells returns the value of each server, and the proxy's target.
func (r row) valueCells() (cells []string) {
	for _, s := range []string{kubeAPIServer, ours, theFloor} {
		cell := ""
		if v, ok := r.Value[s]; ok {
			cell = strconv.FormatFloat(v, 'f', 2, 64)
		}
		cells = append(cells, cell)
	}
	v, most := r.Value[ours], r.Target.AtMost
	if less := r.Target.LessThanAPIServer; less > 0 {
		most = r.Value[kubeAPIServer] / less
	}
	switch {
	case most == 0:
		return append(cells, "")
	case v <= most:
		return append(cells, fmt.Sprintf("≤ %.4g, met", most))
	}
	return append(cells, fmt.Sprintf("≤ %.4g, MISSED", most))
}
