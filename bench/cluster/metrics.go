package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Metrics are metrics in Prometheus' text format. Sum scans the text for the wanted samples. The
// apiserver's metrics have many thousands of lines, and parsing all of them once a second would
// distort measurements.
type Metrics string

// Metrics returns the proxy's metrics.
func (p *Proxy) Metrics(ctx context.Context) (Metrics, error) {
	e := NewEndpoint("watchproxy", p.AdminURL, "", nil)
	defer e.CloseIdle()
	got, err := e.Ask(ctx, Get("/metrics"))
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("%d: %s", got.Status, got.Body)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read watchproxy's metrics: %w", err)
	}
	return Metrics(got.Body), nil
}

// Sum adds up the metric's samples that have all the labels. Each label has the form name="value".
func (m Metrics) Sum(metric string, labels ...string) float64 {
	var total float64
	for rest := string(m); ; {
		at := strings.Index(rest, "\n"+metric)
		if at < 0 {
			return total
		}
		rest = rest[at+1+len(metric):]
		line, _, _ := strings.Cut(rest, "\n")
		total += sample(line, labels)
	}
}

// sample returns the value in a line from which the metric's name has been removed. It returns 0 if
// the line belongs to a metric with a longer name, or if a label differs.
func sample(line string, labels []string) float64 {
	has, value, ok := strings.Cut(line, " ")
	if end := strings.LastIndex(line, "} "); end >= 0 {
		has, value, ok = line[:end], line[end+2:], line[0] == '{'
	}
	if !ok || has != "" && has[0] != '{' {
		return 0
	}
	for _, l := range labels {
		if !strings.Contains(has, "{"+l) && !strings.Contains(has, ","+l) {
			return 0
		}
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0
	}
	return v
}

// Label formats a label of a sample, for Sum.
func Label(name, value string) string { return name + "=" + strconv.Quote(value) }
