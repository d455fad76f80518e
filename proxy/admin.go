package proxy

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Admin answers operators and probes: /metrics, /livez, /readyz, /status, and a page
// that shows the latter at /. It shows names of resources and figures, and no other data of the cluster.
type Admin struct {
	ready  atomic.Bool
	status func() (any, error)
	mux    *http.ServeMux
}

const adminHeaderTimeout = 10 * time.Second

// NewAdmin returns the admin handler. Status is shown as JSON at /status, and Go's
// profiles at /debug/pprof if profiling is asked for.
func NewAdmin(metrics prometheus.Gatherer, status func() (any, error), profiling bool) *Admin {
	a := &Admin{status: status, mux: http.NewServeMux()}
	a.mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	a.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { ok(w) })
	a.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !a.ready.Load() {
			http.Error(w, "not ready: starting or draining", http.StatusServiceUnavailable)
			return
		}
		ok(w)
	})
	a.mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		s, err := a.status()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(s) // the client may be gone
	})
	servePage(a.mux)
	if profiling {
		a.mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		a.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		a.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return a
}

func ok(w http.ResponseWriter) { _, _ = w.Write([]byte("ok\n")) }

// SetReady says whether new clients should be sent here.
func (a *Admin) SetReady(ready bool) { a.ready.Store(ready) }

// Server returns an HTTP server of the admin endpoints, to be served and shut
// down by the caller.
func (a *Admin) Server() *http.Server {
	return &http.Server{Handler: a.mux, ReadHeaderTimeout: adminHeaderTimeout}
}
