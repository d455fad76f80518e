//go:build verify

package main

import (
	"os"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The test's binary is also the floor.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main()
		os.Exit(0)
	}
}

// Every measurement works at all of its servers, with few pods.
func TestBench(t *testing.T) {
	proxy, err := cluster.BuildProxy(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	r := &report{}
	err = measure(t.Context(), &options{
		pods: 600, watches: 20, rounds: 1, each: minEach, watchproxy: proxy, beforeFile: proxy,
	}, r)
	r.print(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(r.results), len((&bench{options: &options{}}).measurements()); got != want {
		t.Errorf("%d of %d measurements", got, want)
	}
	for _, m := range r.results {
		names := []string{before, ours}
		if !m.proxies {
			names = append(names, kubeAPIServer)
		}
		if m.floor {
			names = append(names, floor)
		}
		for _, name := range names {
			s := m.samples[name]
			// The floor acknowledges an event after its delivery, so its times mean nothing.
			timed := len(s.ms) > 0 || name == floor && m.group == "events"
			used := m.group == "memory" || timed && (m.group == "cold" || s.bytes > 0)
			if s.units == 0 || !used {
				t.Errorf("%s: %s: %s: only %d units, %d bytes, %d times", m.group, m.name, name, s.units, s.bytes, len(s.ms))
			}
		}
	}
}
