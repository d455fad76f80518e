package main

import (
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

// Where caches cannot be saved, that is counted as often as they would be, from 0: an alert needs something to rise.
func TestRefusedDirectoryIsCounted(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil { //nolint:gosec // that is what must be refused
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics := upstream.NewMetrics(registry)
		counts := func() (of []float64) {
			all, err := gather(registry)
			if err != nil {
				t.Fatal(err)
			}
			for _, outcome := range []string{"saved", "failed"} {
				is := func(label func(string) string) bool { return label("outcome") == outcome }
				of = append(of, all.sum("watchproxy_cache_saves_total", is))
			}
			if series := len(all["watchproxy_cache_saves_total"].GetMetric()); series != 2 {
				t.Errorf("%d series", series)
			}
			return of
		}
		p := config.Persistence{Directory: dir, Interval: &metav1.Duration{Duration: time.Minute}}
		save, err := persist(t.Context(), p, nil, nil, metrics, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		if got := counts(); got[0] != 0 || got[1] != 0 {
			t.Errorf("at the start: %v", got)
		}
		time.Sleep(3*time.Minute + time.Second)
		if got := counts(); got[0] != 0 || got[1] != 3 {
			t.Errorf("after three intervals: %v", got)
		}
		save()
		if got := counts(); got[1] != 4 {
			t.Errorf("at the end: %v", got)
		}
	})
}
