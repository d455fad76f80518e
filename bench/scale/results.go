package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// results has the figures of all roads.
type results struct {
	head  string
	json  int64 // bytes of what the crowd reads
	roads []string
	found map[string][]figure
}

// figure is one thing that was measured in an episode of a road.
type figure struct {
	episode, what, unit string
	call                *call // of API calls, else nil
	count, slow         int   // slow: above the SLO
	data                map[string]float64
}

// perfData is the JSON of ClusterLoader2's measurements, which perf-dash reads.
type perfData struct {
	Version   string     `json:"version"`
	DataItems []dataItem `json:"dataItems"`
}

type dataItem struct {
	Data   map[string]float64 `json:"data"`
	Unit   string             `json:"unit"`
	Labels map[string]string  `json:"labels"`
}

func (r *results) add(road string, episodes []episode) {
	if r.found == nil {
		r.found = map[string][]figure{}
	}
	r.roads = append(r.roads, road)
	steady := map[string]float64{} // processor time in a second
	for _, e := range episodes {
		if e.name == "steady" {
			for name, u := range e.used.used {
				steady[name] = u.cpu.Seconds() / e.seconds
			}
		}
		r.found[road] = append(r.found[road], e.figures(steady, float64(r.json))...)
	}
}

// figures sorts an episode's figures by what was measured. steady is the processor time that each
// process needs in a second of the steady episode, once that is known. json is the size of what the
// crowd reads, in bytes.
func (e episode) figures(steady map[string]float64, json float64) (all []figure) {
	times := func(what string, c *call, values []float64) {
		if len(values) > 0 {
			slow := 0
			for _, v := range values {
				if c != nil && v > c.limit() {
					slow++
				}
			}
			all = append(all, figure{e.name, what, "ms", c, len(values), slow, map[string]float64{
				"Perc50": workload.Quantile(values, 50), "Perc90": workload.Quantile(values, 90), "Perc99": workload.Quantile(values, 99),
			}})
		}
	}
	one := func(what, unit string, value float64) {
		all = append(all, figure{e.name, what, unit, nil, 1, 0, map[string]float64{"value": value}})
	}
	one("duration", "s", e.seconds)
	byName := func(a, b call) int { return strings.Compare(a.String(), b.String()) }
	for _, c := range slices.SortedFunc(maps.Keys(e.calls), byName) {
		times(c.String(), &c, e.calls[c])
	}
	times("watch latency", nil, e.latencies)
	for _, what := range slices.Sorted(maps.Keys(e.times)) {
		times(what, nil, e.times[what])
	}
	for _, code := range slices.Sorted(maps.Keys(e.codes)) {
		one("responses: "+code, "1", float64(e.codes[code]))
	}
	if e.failure != "" {
		one("not recovered", "1", 1)
	}
	one(apiserver+", requests", "1", e.used.requests)
	for _, name := range slices.Sorted(maps.Keys(e.used.used)) {
		u := e.used.used[name]
		one(name+", processor time", "s", u.cpu.Seconds())
		if e.name == "storm" {
			one(name+", processor time above steady", "s", u.cpu.Seconds()-steady[name]*e.seconds)
		}
		one(name+", memory", "MB", float64(u.memory)/1e6)
		one(name+", peak memory", "MB", float64(u.peak)/1e6)
		if strings.HasPrefix(name, "watchproxy") {
			one(name+", memory / JSON", "1", float64(u.memory)/json)
			one(name+", peak memory / JSON", "1", float64(u.peak)/json)
		}
		one(name+", read", "MB", float64(u.read)/1e6)
		one(name+", written", "MB", float64(u.written)/1e6)
	}
	return all
}

// String names the call in tables.
func (c call) String() string {
	return strings.Join(strings.Fields(c.verb+" "+c.resource+" "+c.subresource+" "+c.scope), " ")
}

// limit is the SLO of a call in ms: 1 s for one object and for writes, 30 s for a list.
func (c call) limit() float64 {
	if c.verb == "LIST" {
		return 30e3
	}
	return 1e3
}

// write writes the figures as ClusterLoader2's JSON, as a table, and as a picture.
func (r *results) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, road := range r.roads {
		calls, others := r.perf(road)
		errs = append(errs, writeJSON(filepath.Join(dir, "APIResponsivenessPrometheus_"+road+".json"), calls),
			writeJSON(filepath.Join(dir, "Scale_"+road+".json"), others))
	}
	file, err := os.Create(filepath.Join(dir, "scale.txt"))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	r.print(file)
	return errors.Join(append(errs, file.Close(), r.draw(filepath.Join(dir, "scale.svg")))...)
}

// perf returns the figures of API calls, and the others.
func (r *results) perf(road string) (calls, others perfData) {
	calls.Version, others.Version = "v1", "v1"
	for _, f := range r.found[road] {
		labels := map[string]string{"Episode": f.episode, "Count": strconv.Itoa(f.count)}
		if f.call == nil {
			labels["Metric"] = f.what
			others.DataItems = append(others.DataItems, dataItem{f.data, f.unit, labels})
			continue
		}
		labels["SlowCount"] = strconv.Itoa(f.slow)
		labels["Verb"], labels["Resource"], labels["Subresource"], labels["Scope"] = f.call.verb, f.call.resource, f.call.subresource, f.call.scope
		calls.DataItems = append(calls.DataItems, dataItem{f.data, f.unit, labels})
	}
	return calls, others
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// print writes a table with a column for each road.
func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.head)
	t := &workload.Table{Left: 3, Rows: [][]string{{"EPISODE", "FIGURE", "UNIT"}}}
	rows := map[string][]string{}
	for n, road := range r.roads {
		t.Rows[0] = append(t.Rows[0], strings.ToUpper(road))
		for _, f := range r.found[road] {
			for _, part := range []string{"value", "Perc50", "Perc99"} {
				value, has := f.data[part]
				if !has {
					continue
				}
				what := strings.TrimSuffix(f.what+", "+strings.ReplaceAll(part, "Perc", "p"), ", value")
				row, known := rows[f.episode+what]
				if !known {
					row = append([]string{f.episode, what, f.unit}, make([]string, len(r.roads))...)
					rows[f.episode+what] = row
					t.Add(row...)
				}
				precision, format := 3, byte('g')
				if value >= 100 {
					precision, format = 0, 'f'
				}
				row[3+n] = strconv.FormatFloat(value, format, precision, 64)
			}
		}
	}
	// The roads differ in their episodes.
	slices.SortStableFunc(t.Rows[1:], func(a, b []string) int { return order(a[0]) - order(b[0]) })
	t.Print(w)
}

func order(episode string) int {
	return slices.Index([]string{"start", "steady", "storm", "proxy restart", "apiserver restart"}, episode)
}

func (r *results) find(road, episode, what string) (figure, bool) {
	for _, f := range r.found[road] {
		if f.episode == episode && f.what == what {
			return f, true
		}
	}
	return figure{}, false
}
