package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// report is all that was measured.
type report struct {
	Pods int   `json:"pods"`
	Rows []row `json:"rows"`
}

// row is one scenario.
type row struct {
	Scenario string           `json:"scenario"`
	Clients  int              `json:"clients"`
	Unit     string           `json:"unit"`
	Servers  map[string]spent `json:"servers"`
	Target   target           `json:"target"`
	// Value is what was measured instead of processor time.
	Value map[string]float64 `json:"value,omitempty"`
}

// target is what the proxy should reach. Zero values are no targets.
type target struct {
	OfFloor           float64 `json:"ofFloor,omitempty"`           // at most so many times the floor's
	LessThanAPIServer float64 `json:"lessThanAPIServer,omitempty"` // the apiserver's is at least so many times ours
	AtMost            float64 `json:"atMost,omitempty"`
}

// ratio divides what one server takes by what another does, 0 if either is unknown.
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
		cells = r.values()
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

// times is a ratio beside its target.
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

// processorTime is that of one unit.
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

func (r *report) print(w io.Writer) {
	t := &workload.Table{Left: 1, Rows: [][]string{{"SCENARIO", "CLIENTS", "UNIT", "KUBE-APISERVER", "WATCHPROXY", "FLOOR", "LESS THAN KUBE-APISERVER", "OF THE FLOOR"}}}
	for _, row := range r.Rows {
		if len(row.Servers) > 0 {
			t.Add(append([]string{row.Scenario, strconv.Itoa(row.Clients), row.Unit}, row.cells()...)...)
		}
	}
	if len(t.Rows) > 1 {
		fmt.Fprintf(w, "\nProcessor time of servers for a unit of work, %d pods; the floor sends ready bytes. In brackets the targets: how\n"+
			"many times less than kube-apiserver, and how many times the floor.\n\n", r.Pods)
		t.Print(w)
		fmt.Fprintln(w)
		r.chart(w)
	}
	others := &workload.Table{Left: 1, Rows: [][]string{{"SCENARIO", "CLIENTS", "UNIT", "KUBE-APISERVER", "WATCHPROXY", "FLOOR", "TARGET"}}}
	for _, row := range r.Rows {
		if len(row.Value) > 0 {
			others.Add(append([]string{row.Scenario, strconv.Itoa(row.Clients), row.Unit}, row.values()...)...)
		}
	}
	if len(others.Rows) > 1 {
		fmt.Fprintln(w)
		others.Print(w)
	}
}

// values are those of each server, and what ours should be.
func (r row) values() (cells []string) {
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
