// Package admin serves operators and probes.
//
// Requests on a loopback address come from this machine or pod, for example through a port-forward,
// and are served. The apiserver reviews all others (package access). So /metrics, the status and
// /debug need credentials, and the kubelet's probes do not. One port speaks TLS for requests with
// credentials and plain HTTP for probes.
//
// Requests that a web page may have made a browser send are refused. A request with a
// reviewed bearer token is exempt, because browsers never add a token on their own.
package admin

import (
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// Admin serves /metrics, /livez and /readyz with their single checks, and /status. At / it serves a
// page that shows the status. These responses contain names of resources, and figures.
type Admin struct {
	options  Options
	state    atomic.Int32
	mux      *http.ServeMux
	figures  *figures
	handlers chan struct{} // has an element for each running handler, except those of probes
}

// Options are the settings of an [Admin].
type Options struct {
	// Status returns the status, which is served as JSON. It reads the metrics from its argument.
	Status func(prometheus.Gatherer) (any, error)
	// Ready are checks of /readyz beside the server's own.
	Ready      []healthz.HealthChecker
	Everybody  bool        // serves requests from any address without authentication
	Open       []string    // the paths that are served without authentication
	Restricted bool        // serves only Open on loopback addresses, too
	TLS        *tls.Config // nil for plain HTTP; with it, the server accepts both
	// Access reviews all other requests, except requests on loopback addresses. If it is nil, these
	// requests are refused: credentials are accepted only over TLS.
	Access Access
}

const (
	// adminHeaderTimeout limits the time to send a request's header, and then that for its body.
	adminHeaderTimeout = 10 * time.Second
	// adminWriteTimeout limits a response. A profile fits, whose duration is set by its request.
	adminWriteTimeout = 2 * time.Minute
	// handlersMost limits the handlers that run, except those of probes. A handler whose connection
	// was closed may run for a moment, so there may be more handlers than connections.
	handlersMost = 2 * connections
	debug        = "/debug/"
	profiles     = debug + "pprof/"
)

// Listener returns a listener for the server, with a bounded number of connections, and with TLS if
// the options have it. It takes ownership of inner.
func (a *Admin) Listener(inner net.Listener) net.Listener {
	if a.options.TLS == nil {
		return bounded(inner)
	}
	return secure(bounded(inner), a.options.TLS)
}

// New returns the admin handler. It serves the gathered metrics.
func New(gathered prometheus.Gatherer, options Options) *Admin {
	a := &Admin{
		options:  options,
		mux:      http.NewServeMux(),
		figures:  &figures{from: gathered, busy: make(chan struct{}, 1)},
		handlers: make(chan struct{}, handlersMost),
	}
	a.mux.HandleFunc("GET /metrics", a.figures.serveMetrics)
	a.mux.HandleFunc("GET /status", a.figures.serveStatus(options.Status))
	healthz.InstallLivezHandler(a.mux, healthz.PingHealthz)
	ready := []healthz.HealthChecker{
		healthz.PingHealthz,
		a.unless(starting, "startup", "watchproxy does not listen yet"),
		a.unless(draining, "shutdown", "watchproxy is draining"),
	}
	healthz.InstallReadyzHandler(a.mux, append(ready, options.Ready...)...)
	servePage(a.mux)
	a.serveProfiles()
	return a
}

// serveProfiles serves Go's profiles, one at a time of those that have names, such as heap, because
// they need memory and stop all goroutines. The runtime itself limits CPU profiles and traces.
func (a *Admin) serveProfiles() {
	making := make(chan struct{}, 1)
	named := func(w http.ResponseWriter, r *http.Request) {
		select {
		case making <- struct{}{}:
			defer func() { <-making }()
			pprof.Index(w, r)
		case <-r.Context().Done():
		}
	}
	a.mux.HandleFunc("GET "+profiles, named)
	a.mux.HandleFunc("GET "+profiles+"profile", pprof.Profile)
	a.mux.HandleFunc("GET "+profiles+"trace", pprof.Trace)
}

// The states of the proxy. Readiness does not depend on whether upstream can be reached: while
// upstream is lost, other replicas have lost it too, and the caches still answer.
const (
	starting int32 = iota
	serving
	draining
)

func (a *Admin) unless(state int32, name, message string) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(*http.Request) error {
		if a.state.Load() == state {
			return errors.New(message)
		}
		return nil
	})
}

// Ready makes /readyz succeed, so that new clients are sent to this replica.
func (a *Admin) Ready() { a.state.Store(serving) }

// Drain makes /readyz fail, so that new clients are sent to other replicas.
func (a *Admin) Drain() { a.state.Store(draining) }

// Server returns an HTTP server of the admin endpoints. The caller runs it.
func (a *Admin) Server() *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(a.serve), ConnContext: untilClosed,
		ReadHeaderTimeout: adminHeaderTimeout, WriteTimeout: adminWriteTimeout,
	}
}

func (a *Admin) serve(w http.ResponseWriter, r *http.Request) {
	access.IsolatePage(w.Header())
	if !covers("/livez", r.URL.Path) && !covers("/readyz", r.URL.Path) {
		select {
		case a.handlers <- struct{}{}:
			defer func() { <-a.handlers }()
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "503: too many requests are being answered",
				http.StatusServiceUnavailable)
			return
		}
	}
	if r.ContentLength != 0 { // the server reads the whole body before it writes a response
		// A closed connection has no deadline.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(adminHeaderTimeout))
	}
	caller, refused := a.options.admit(r)
	if refused != nil {
		switch refused.status {
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "1")
		}
		http.Error(w, fmt.Sprintf("%d: %s", refused.status, refused.why), refused.status)
		return
	}
	if caller == nil || !caller.Token {
		if reason := adminReason(r); reason != "" {
			http.Error(w, adminRefusals[reason], http.StatusForbidden)
			return
		}
	}
	a.mux.ServeHTTP(w, r)
}

// adminReason returns the reason to refuse a request that a web page may have made a browser send,
// or "" to serve it. An IP address as Host is safe, because pages cannot redirect an address. Tools
// in a cluster use names, such as a Service's name. The proxy cannot know these names. So a name is
// refused only in requests from browsers, on loopback addresses, and for profiles.
func adminReason(r *http.Request) string {
	h, profile := r.Header, strings.HasPrefix(r.URL.Path, debug)
	named := !access.LoopbackHost(r.Host) && !access.AddressHost(r.Host)
	switch {
	case named && (profile || onLoopback(r) || access.MaybeBrowser(h)):
		return access.ReasonHost
	case r.URL.Path == "/" && h.Get("Sec-Fetch-Dest") == "document" && h["Origin"] == nil:
		return "" // the user followed a link to the status page
	}
	return access.ForeignPage(h, r.TLS != nil, r.Host)
}

var adminRefusals = map[string]string{
	access.ReasonHost: "403: a web page can have led this name here: use localhost or an IP " +
		"address, or have the proxy in front send one as Host",
	access.ReasonSite: "403: a page of another site sent this request, " +
		"says Sec-Fetch-Site: type the address into the browser",
	access.ReasonOrigin: "403: a page of another origin sent this request, says Origin: a client " +
		"other than a browser should leave Origin out",
}

// page holds all files of the status page.
//
//go:embed page
var page embed.FS

var pageFiles = map[string]string{
	"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/charts.js": "charts.js",
	"/format.js": "format.js", "/history.js": "history.js", "/tables.js": "tables.js",
}

// servePage serves the page at the root. It may load only its own files, and nobody may frame it.
func servePage(mux *http.ServeMux) {
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	for path, file := range pageFiles {
		if path == "/" {
			path = "/{$}"
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Security-Policy", policy)
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, page, "page/"+file)
		})
	}
}
