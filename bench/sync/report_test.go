package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestReportIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	r := report{
		Sync:   []solo{{Collection: "1 quiet", Direct: times{1e9, 3e9, 2e9}, Upstream: upstream{Probes: 3}}},
		Herd:   []herd{{Members: 4}},
		Writes: 5,
	}
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Sync []struct {
			Direct struct {
				MedianSeconds, WorstSeconds float64
				Seconds                     []float64
			}
			Upstream struct{ Probes int }
		}
		Herd []struct{ Informers int }
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if d := got.Sync[0].Direct; d.MedianSeconds != 2 || d.WorstSeconds != 3 || len(d.Seconds) != 3 {
		t.Errorf("times are %+v", d)
	}
	if got.Sync[0].Upstream.Probes != 3 || got.Herd[0].Informers != 4 {
		t.Errorf("got %s", b)
	}
}
