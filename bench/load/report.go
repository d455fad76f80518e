package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// The names of the compared servers, in the order of the report.
const (
	kubeAPIServer = "kube-apiserver"
	before        = "before"
	ours          = "watchproxy"
	floor         = "floor"
)

// sample is what a measurement has found at a server.
type sample struct {
	units    int           // of work
	cpu      time.Duration // processor time of the server for all units
	bytes    int64         // on the wire
	upstream float64       // requests of a proxy to the apiserver
	memory   int64         // bytes
	ms       []float64     // how long each unit took
}

// and adds a sample of another round.
func (s sample) and(o sample) sample {
	return sample{
		s.units + o.units, s.cpu + o.cpu, s.bytes + o.bytes, s.upstream + o.upstream, s.memory + o.memory,
		append(s.ms, o.ms...),
	}
}

// figure is one value of a sample, for each unit of work.
type figure struct {
	name string
	of   func(s sample) float64
	// added means that the figure is what a server adds to the apiserver's.
	added bool
}

var (
	cpu      = figure{name: "processor time, ms", of: func(s sample) float64 { return s.cpu.Seconds() * 1e3 / float64(s.units) }}
	wire     = figure{name: "on the wire, KiB", of: func(s sample) float64 { return float64(s.bytes) / 1024 / float64(s.units) }}
	upstream = figure{name: "requests to the apiserver", of: func(s sample) float64 { return s.upstream / float64(s.units) }}
	memory   = figure{name: "memory, KiB", of: func(s sample) float64 { return float64(s.memory) / 1024 / float64(s.units) }}
	p50      = figure{name: "median, ms", of: func(s sample) float64 { return workload.Quantile(s.ms, 50) }}
	p99      = figure{name: "99 %, ms", of: func(s sample) float64 { return workload.Quantile(s.ms, 99) }}
	added    = figure{name: "median that the server adds, ms", of: p50.of, added: true}
)

// report has the results of all measurements.
type report struct {
	header  string
	results []result
}

// result has the samples of a measurement, by server.
type result struct {
	measurement
	samples map[string]sample
}

// newReport returns a report with the date, the commit and the machine.
func newReport(ctx context.Context, o *options) *report {
	selected := ""
	if o.only != "" {
		selected = " --only " + o.only
	}
	return &report{header: fmt.Sprintf("bench-load%s, %s\n%d pods, %d watches. Figures are for a unit of work.",
		selected, workload.Where(ctx), o.pods, o.watches)}
}

// rows returns a row for each figure of a result.
func (r result) rows() (rows [][]string) {
	for _, f := range r.figures {
		value := map[string]float64{}
		for name, s := range r.samples {
			value[name] = f.of(s)
			if f.added {
				value[name] -= f.of(r.samples[kubeAPIServer])
			}
		}
		row := []string{r.group + ": " + r.name, f.name}
		for _, name := range []string{kubeAPIServer, before, ours, floor} {
			row = append(row, format(value[name]))
		}
		for _, ratio := range [][2]string{{kubeAPIServer, ours}, {ours, before}, {ours, floor}} {
			cell := ""
			if over, under := value[ratio[0]], value[ratio[1]]; over > 0 && under > 0 {
				cell = fmt.Sprintf("%.2f ×", over/under)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

// format writes a value with three digits or more; nothing for 0.
func format(v float64) string {
	switch {
	case v == 0:
		return ""
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// print writes the report as text.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.header)
	t := &workload.Table{Left: 2, Rows: [][]string{{
		"MEASUREMENT", "FIGURE", "KUBE-APISERVER", "BEFORE", "WATCHPROXY", "FLOOR",
		"KUBE-APISERVER / WATCHPROXY", "WATCHPROXY / BEFORE", "WATCHPROXY / FLOOR",
	}}}
	for _, result := range r.results {
		t.Rows = append(t.Rows, result.rows()...)
	}
	t.Print(w)
}
