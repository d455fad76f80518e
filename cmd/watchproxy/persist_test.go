package main

import (
	"maps"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// With an unusable directory, one failed save is counted per interval. The counter starts at 0,
// because the alert needs an increase.
func TestRefusedDirectoryIsCounted(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil { //nolint:gosec // that is what must be refused
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics := upstream.NewMetrics(registry)
		counts := func() map[string]float64 {
			of := map[string]float64{}
			all, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range all {
				for _, m := range family.GetMetric() {
					if family.GetName() == "watchproxy_cache_saves_total" {
						of[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
			return of
		}
		p := config.Persistence{Directory: dir, Interval: &metav1.Duration{Duration: time.Minute}}
		save, err := persist(t.Context(), p, nil, nil, metrics, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		if got := counts(); !maps.Equal(got, map[string]float64{"saved": 0, "failed": 0}) {
			t.Errorf("at the start: %v", got)
		}
		time.Sleep(3*time.Minute + time.Second)
		if got := counts(); got["saved"] != 0 || got["failed"] != 3 {
			t.Errorf("after three intervals: %v", got)
		}
		save()
		if got := counts(); got["failed"] != 4 {
			t.Errorf("at the end: %v", got)
		}
	})
}
