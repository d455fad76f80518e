// Package admin serves operators and probes.
package admin

import (
	"embed"
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

// Admin serves /metrics, /livez, /readyz, /status, and at / a page that shows the status. It shows
// nothing of the cluster except names of resources and figures.
type Admin struct {
	ready   atomic.Bool
	mux     *http.ServeMux
	metrics *metrics.Metrics
}

const (
	adminHeaderTimeout = 10 * time.Second
	// adminWriteTimeout bounds the time of an answer. It leaves time for a profile, which runs as
	// long as its request says.
	adminWriteTimeout = 2 * time.Minute
	profiles          = "/debug/pprof/"
)

// New returns the admin handler, which counts refusals in metrics. It serves the gathered metrics,
// status as JSON and, with profiling, Go's profiles.
func New(gathered prometheus.Gatherer, metrics *metrics.Metrics, status func() (any, error), profiling bool) *Admin {
	a := &Admin{mux: http.NewServeMux(), metrics: metrics}
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
		s, err := status()
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

// Server returns an HTTP server of the admin endpoints. The caller runs it.
func (a *Admin) Server() *http.Server {
	return &http.Server{Handler: http.HandlerFunc(a.serve), ReadHeaderTimeout: adminHeaderTimeout, WriteTimeout: adminWriteTimeout}
}

// serve refuses requests that a web page may have made a browser send.
func (a *Admin) serve(w http.ResponseWriter, r *http.Request) {
	browser.Isolate(w.Header())
	if reason := adminReason(r); reason != "" {
		a.metrics.Browsers.WithLabelValues("admin", reason).Inc()
		http.Error(w, adminRefusals[reason], http.StatusForbidden)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// adminReason returns the reason to refuse a request that a web page may have made a browser send,
// or "" to serve it. An IP address as Host is safe, because no page can make an address lead
// elsewhere. Tools in a cluster use names, such as a Service's, and the proxy cannot know these
// names. So names are refused only from browsers, on loopback, and for profiles.
func adminReason(r *http.Request) string {
	h, profile := r.Header, strings.HasPrefix(r.URL.Path, profiles)
	named := !browser.LoopbackHost(r.Host) && !browser.AddressHost(r.Host)
	switch {
	case named && (profile || byLoopback(r) || browser.MaybeBrowser(h)):
		return browser.ReasonHost
	case r.URL.Path == "/" && h.Get("Sec-Fetch-Dest") == "document" && h["Origin"] == nil:
		return "" // the user followed a link to the status page
	case profile && browser.FromBrowser(h) && h["Sec-Fetch-Site"] == nil:
		return browser.ReasonUntold // a profile costs processor time even if the page cannot read it
	}
	return browser.Foreign(h, r.TLS != nil, r.Host)
}

// byLoopback tells whether a request came to a loopback address, for example through a
// port-forward.
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

// page holds all files of the status page.
//
//go:embed page
var page embed.FS

// servePage serves the page at the root. It may load only its own files, and no page may frame it.
func servePage(mux *http.ServeMux) {
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	for path, file := range map[string]string{"/{$}": "index.html", "/page.css": "page.css", "/page.js": "page.js"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Security-Policy", policy)
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, page, "page/"+file)
		})
	}
}
