// Package admin serves operators and probes.
package admin

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/watchproxy/watchproxy/proxy/browser"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Admin answers operators and probes: /metrics, /livez, /readyz, /status, and a page
// that shows the latter at /. It shows names of resources and figures, and no other data of the cluster.
type Admin struct {
	ready   atomic.Bool
	status  func() (any, error)
	mux     *http.ServeMux
	metrics *metrics.Metrics
}

const (
	adminHeaderTimeout = 10 * time.Second
	// adminWriteTimeout bounds an answer: profiles take as long as they are asked for, up to that.
	adminWriteTimeout = 2 * time.Minute
	profiles          = "/debug/pprof/"
)

// New returns the admin handler, which counts what it refuses in metrics. All that was
// gathered is shown at /metrics, status as JSON at /status, and Go's profiles at /debug/pprof if
// profiling is asked for.
func New(gathered prometheus.Gatherer, metrics *metrics.Metrics, status func() (any, error), profiling bool) *Admin {
	a := &Admin{status: status, mux: http.NewServeMux(), metrics: metrics}
	a.mux.Handle("GET /metrics", promhttp.HandlerFor(gathered, promhttp.HandlerOpts{}))
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
		a.mux.HandleFunc("GET "+profiles, pprof.Index)
		a.mux.HandleFunc("GET "+profiles+"profile", pprof.Profile)
		a.mux.HandleFunc("GET "+profiles+"trace", pprof.Trace)
	}
	return a
}

func ok(w http.ResponseWriter) { _, _ = w.Write([]byte("ok\n")) }

// SetReady says whether new clients should be sent here.
func (a *Admin) SetReady(ready bool) { a.ready.Store(ready) }

// Server returns an HTTP server of the admin endpoints, to be served and shut
// down by the caller.
func (a *Admin) Server() *http.Server {
	return &http.Server{Handler: http.HandlerFunc(a.serve), ReadHeaderTimeout: adminHeaderTimeout, WriteTimeout: adminWriteTimeout}
}

// serve refuses what a web page may have made a browser send.
func (a *Admin) serve(w http.ResponseWriter, r *http.Request) {
	browser.Isolate(w.Header())
	if reason := adminReason(r); reason != "" {
		a.metrics.Browsers.WithLabelValues("admin", reason).Inc()
		http.Error(w, adminRefusals[reason], http.StatusForbidden)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// adminReason tells why a request may be the work of a page that must not send it, or nothing.
// Addresses are safe, as no page can lead them elsewhere. Names serve tools in a cluster, where
// nobody knows all names of a Service: not browsers, not on loopback, and not for profiles.
func adminReason(r *http.Request) string {
	h, profile := r.Header, strings.HasPrefix(r.URL.Path, profiles)
	named := !browser.LoopbackHost(r.Host) && !browser.AddressHost(r.Host)
	switch {
	case named && (profile || byLoopback(r) || browser.MaybeBrowser(h)):
		return browser.ReasonHost
	case r.URL.Path == "/" && h.Get("Sec-Fetch-Dest") == "document" && h["Origin"] == nil:
		return "" // a link to the page, from wherever
	case profile && browser.FromBrowser(h) && h["Sec-Fetch-Site"] == nil:
		return browser.ReasonUntold // a profile costs processor time, seen or not
	}
	return browser.Foreign(h, r.TLS != nil, r.Host)
}

// byLoopback tells that a request came to a loopback address, as a port-forward's does.
func byLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return !ok || local.IP.IsLoopback()
}

// adminRefusals tell what to do about each reason.
var adminRefusals = map[string]string{
	browser.ReasonHost:   "403: a web page can have led this name here: use localhost or an IP address, or have the proxy in front send one as Host",
	browser.ReasonSite:   "403: a page of another site sent this request, says Sec-Fetch-Site: type the address into the browser",
	browser.ReasonOrigin: "403: a page of another origin sent this request, says Origin: a client other than a browser should leave Origin out",
	browser.ReasonUntold: "403: an old browser may have sent this request for any page: use a newer one, or a User-Agent without Mozilla",
}
