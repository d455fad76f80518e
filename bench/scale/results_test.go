package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCallOf(t *testing.T) {
	for target, want := range map[string]string{
		"GET /api/v1/namespaces/a/pods/b":                                                "GET pods resource",
		"GET /api/v1/namespaces/a/pods":                                                  "LIST pods namespace",
		"GET /api/v1/pods?limit=500":                                                     "LIST pods cluster",
		"GET /api/v1/nodes?fieldSelector=metadata.name%3Da&watch=true":                   "WATCH nodes resource",
		"PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1":      "PUT leases resource",
		"POST /api/v1/namespaces/a/configmaps":                                           "POST configmaps resource",
		"PATCH /api/v1/nodes/a/status":                                                   "PATCH nodes status resource",
		"GET /version":                                                                   "GET none",
		"GET /apis/scale.watchproxy.dev/v1/databases?sendInitialEvents=true&watch=1&a=b": "WATCH databases cluster",
	} {
		method, path, _ := strings.Cut(target, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "https://127.0.0.1"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := callOf(req).String(); got != want {
			t.Errorf("%s is %q instead of %q", target, got, want)
		}
	}
}

func TestRecorder(t *testing.T) {
	r := newRecorder()
	status := http.StatusOK
	transport := r.wrap(measuring(func(*http.Request) (*http.Response, error) {
		if status == 0 {
			return nil, errors.New("refused")
		}
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}))
	ask := func(path string, answer int) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		status = answer
		resp, err := transport.RoundTrip(req)
		if err != nil && answer != 0 {
			t.Fatal(err)
		}
		return resp
	}
	list := ask("/api/v1/pods", http.StatusOK)
	if n := len(r.take().calls); n != 0 {
		t.Errorf("%d calls before the last byte", n)
	}
	if _, err := io.ReadAll(list.Body); err != nil {
		t.Fatal(err)
	}
	list.Body.Close()
	watch := ask("/api/v1/pods?watch=true", http.StatusOK)
	if n := r.watches.Load(); n != 1 {
		t.Errorf("%d watches are open", n)
	}
	watch.Body.Close()
	for _, answer := range []int{http.StatusTooManyRequests, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusNotFound, 0} {
		if resp := ask("/api/v1/pods", answer); resp != nil {
			resp.Body.Close()
		}
	}
	got := r.take()
	if n := len(got.calls[call{"LIST", "pods", "", "cluster"}]); n != 1 || len(got.calls) != 1 || r.watches.Load() != 0 {
		t.Errorf("calls %v, %d watches are open", got.calls, r.watches.Load())
	}
	if len(got.codes) != 3 || got.codes["429"] != 2 || got.codes["502"] != 1 || got.codes["no response"] != 1 {
		t.Errorf("codes %v", got.codes)
	}
}

func TestLatencies(t *testing.T) {
	c := &commits{}
	now := time.Now()
	c.mu.at = map[string]time.Time{"7": now}
	got := c.latencies([]read{{"7", now.Add(20 * time.Millisecond)}, {"8", now}, {"7", now.Add(-time.Millisecond)}})
	if len(got) != 2 || got[0] != 20 || got[1] != 0 {
		t.Errorf("got %v", got)
	}
}

// TestResults holds the form of the JSON that perf-dash reads.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	m := newMeasured()
	m.calls[call{"LIST", "pods", "", "namespace"}] = []float64{1, 2, 300}
	m.codes["429"] = 5
	before := reading{used: map[string]usage{apiserver: {pid: 1, cpu: 10 * time.Second}}, requests: 100}
	steady := reading{used: map[string]usage{apiserver: {pid: 1, cpu: 12 * time.Second}}, requests: 110}
	after := reading{used: map[string]usage{apiserver: {pid: 2, cpu: 7 * time.Second}}, requests: 3}
	r := &results{head: "scale 1"}
	for _, road := range roads {
		r.add(road, []episode{
			{name: "steady", seconds: 4, measured: m, latencies: []float64{5, 6}, used: steady.since(before)},
			{name: "storm", seconds: 8, measured: newMeasured(), used: after.since(steady)},
		})
	}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	for file, parts := range map[string][]string{
		"APIResponsivenessPrometheus_direct.json": {
			`"version": "v1"`, `"dataItems": [`, `"Perc99": 300`, `"unit": "ms"`,
			`"Resource": "pods"`, `"Scope": "namespace"`, `"Subresource": ""`, `"Verb": "LIST"`, `"Count": "3"`, `"SlowCount": "0"`,
		},
		"Scale_replicas.json": {`"Metric": "watch latency"`, `"Metric": "responses: 429"`, `"value": 5`},
		"scale.txt":           {"scale 1", "DIRECT", "REPLICAS", "LIST pods namespace, p99", "watch latency, p50"},
		"scale.svg":           {"<svg", "list a namespace", "watchproxy"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s has no %s:\n%.3000s", file, part, text)
			}
		}
	}
	for _, want := range []struct {
		episode, what string
		value         float64
	}{
		{"steady", apiserver + ", processor time", 2},
		{"storm", apiserver + ", processor time", 7}, // of the new process
		{"storm", apiserver + ", processor time above steady", 3},
		{"storm", apiserver + ", requests", 3},
	} {
		if f, ok := r.find("direct", want.episode, want.what); !ok || f.data["value"] != want.value {
			t.Errorf("%s: %s is %v instead of %v", want.episode, want.what, f.data, want.value)
		}
	}
}
