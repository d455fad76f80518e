// Package browser tells which requests a web page may have made a browser send.
//
// A web page must not act as the user of the browser. Without a bearer token, the proxy admits a
// client because of its place in the network or its certificate. A browser has both, whichever page
// makes it send a request. Without the server's consent, pages of other origins can make a browser
// send:
//
//   - WebSockets, whose answers they can read; every browser sends Origin with them;
//   - GET and HEAD for images, scripts, frames and links, without Origin; no answer can be read;
//   - POST from forms, beacons and no-cors fetches, with a form's Content-Type or none; no answer
//     can be read; old browsers send some without Origin;
//   - other requests only after a preflight, an OPTIONS with Origin, which is refused here.
//
// Browsers since 2020 (Safari since 2023) send Sec-Fetch-Site with all of these except WebSockets.
// No script can set Sec-Fetch-Site or Origin. If a page rebinds its own DNS name to this address,
// the browser treats the requests as same-origin. Only the Host header shows the page's name.
//
// Callers with a bearer token are exempt, because no browser adds a token by itself. Anonymous
// callers are not exempt, because the browser may be in a network that the page's author cannot
// reach.
package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Values of the label reason of watchproxy_browser_refusals_total.
const (
	ReasonHost        = "host"         // a page may have made the name resolve to the proxy
	ReasonSite        = "site"         // Sec-Fetch-Site shows another site's page
	ReasonOrigin      = "origin"       // Origin shows another origin's page
	ReasonUntold      = "untold"       // an old browser does not name the page
	ReasonContentType = "content_type" // a form may have sent it
	ReasonInteractive = "interactive"  // browsers must not exec, attach and so on
)

// PageReason returns the reason to refuse a request that a web page may have made a browser send,
// or "" to accept it.
func PageReason(req *exchange.Request, rt *exchange.Route) string {
	h := req.Header
	if reason := Foreign(h, req.TLS != nil, req.Host); reason != "" {
		return reason
	}
	var (
		browser = FromBrowser(h)
		told    = h["Sec-Fetch-Site"] != nil || h["Origin"] != nil
		proxied = rt.Subresource == "proxy"
		simple  = formType(h)
		unsafe  = req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != http.MethodOptions
	)
	switch {
	case browser && interactive(req, rt):
		return ReasonInteractive
	case browser && !told && proxied && !unsafe: // even a GET may change something there
		return ReasonUntold
	case browser && !told && simple && req.Method == http.MethodPost:
		return ReasonUntold
	case unsafe && simple && (req.Body != nil || h["Content-Type"] != nil):
		// A proxied service decides on forms of its own pages.
		if told && proxied || !browser && h.Get("User-Agent") != "" {
			return ""
		}
		return ReasonContentType
	}
	return ""
}

// Foreign returns a reason if a header shows that a page of another origin sent the request. A tool
// may forward requests of its own page here. Such requests have that page's Origin and a
// Sec-Fetch-Site of same-origin, and are accepted.
func Foreign(h http.Header, secure bool, host string) (reason string) {
	sites := h["Sec-Fetch-Site"]
	for _, site := range sites {
		if site != "same-origin" && site != "none" {
			return ReasonSite
		}
	}
	for _, origin := range h["Origin"] {
		if !slices.Contains(sites, "same-origin") && (host == "" || !strings.EqualFold(origin, OwnOrigin(secure, host))) {
			return ReasonOrigin
		}
	}
	return ""
}

// OwnOrigin is the origin of pages at the request's address.
func OwnOrigin(secure bool, host string) string {
	if secure {
		return "https://" + strings.TrimSuffix(host, ":443")
	}
	return "http://" + strings.TrimSuffix(host, ":80")
}

// formType tells whether the Content-Type needs no preflight (WHATWG Fetch, CORS-safelisted
// request-header) or is missing.
func formType(h http.Header) bool {
	for _, value := range h["Content-Type"] {
		essence, _, _ := strings.Cut(value, ";")
		switch strings.ToLower(strings.TrimSpace(essence)) {
		case "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
			return true
		}
	}
	return h["Content-Type"] == nil
}

// FromBrowser tells whether a browser sent a request. It looks at headers that a page of another
// origin cannot hide. Node's fetch sends Sec-Fetch-Mode and accepts any language, so neither is a
// sign of a browser.
func FromBrowser(h http.Header) bool {
	if h["Sec-Fetch-Site"] != nil || h["Sec-Fetch-Dest"] != nil || h["Sec-Fetch-User"] != nil {
		return true
	}
	for _, languages := range h["Accept-Language"] {
		if languages != "*" {
			return true
		}
	}
	for _, agent := range h["User-Agent"] {
		if strings.HasPrefix(agent, "Mozilla/") || strings.HasPrefix(agent, "Opera/") {
			return true
		}
	}
	return false
}

// MaybeBrowser is also true for requests of a page that looks same-origin to the browser. In some
// browsers such a page can set User-Agent, but it cannot remove Accept-Language.
func MaybeBrowser(h http.Header) bool {
	return FromBrowser(h) || h["Accept-Language"] != nil || h["Origin"] != nil || h["Referer"] != nil ||
		h["Cookie"] != nil || h["Sec-Fetch-Mode"] != nil
}

// interactive tells whether a request controls a container or node: exec, attach, port-forward,
// other upgrades, the kubelet's own API. No page may send such a request, because the page of a
// proxied service has the proxy's origin.
func interactive(req *exchange.Request, rt *exchange.Route) bool {
	switch rt.Subresource {
	case "attach", "exec", "portforward":
		return true
	case "proxy":
		return rt.GVR.Resource == "nodes"
	}
	return rt.Verb != "watch" && req.WantsUpgrade()
}

// Isolate keeps pages of other origins from using an answer.
func Isolate(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

// hostname is Host without its port.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// LoopbackHost tells whether Host is a loopback name or address.
func LoopbackHost(host string) bool {
	name := hostname(host)
	if ip := net.ParseIP(name); ip != nil {
		return ip.IsLoopback()
	}
	return name == "" || strings.EqualFold(name, "localhost")
}

// AddressHost tells whether Host is an address. No page can point an address elsewhere.
func AddressHost(host string) bool {
	_, err := netip.ParseAddr(hostname(host))
	return err == nil
}

// PageRefusals tell the client what to do about each reason.
var PageRefusals = map[string]string{
	ReasonHost:        "%s is not a loopback name, and a web page can have led it here: name localhost, 127.0.0.0/8 or [::1]",
	ReasonSite:        "a page of another site sent this request to %s, says Sec-Fetch-Site: type the address into the browser, or use another client",
	ReasonOrigin:      "a page of another origin than %s sent this request, says Origin: a client other than a browser should leave Origin out",
	ReasonUntold:      "an old browser may have sent this request to %s for any page: use a newer one, or a User-Agent without Mozilla",
	ReasonContentType: "any web page could have a browser send this request to %s: give it the Content-Type of its body, such as application/json",
	ReasonInteractive: "browsers may not exec, attach, forward ports or reach kubelets through %s: use kubectl, or a bearer token where clients are authenticated",
}

// ForbiddenPage refuses a request that a web page may have made a browser send.
func ForbiddenPage(reason, to string) metav1.Status {
	return exchange.Failure(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(PageRefusals[reason], strconv.Quote(to)))
}
