// Package browser tells which requests a web page may have made a browser send.
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

// A page in a browser must not act as the browser's user. Without a bearer token, what lets a
// client in is its place in the network or a certificate, and a browser brings both for any page.
// Pages of other origins can send, without the server's consent:
//
//   - WebSockets, whose answers they read; browsers of any age send Origin with them;
//   - GET and HEAD for images, scripts, frames and links, unread; without Origin;
//   - POST from forms, beacons and no-cors fetches, unread; with a Content-Type that a form can
//     have or none; old browsers send no Origin with some of them;
//   - anything else only after a preflight, an OPTIONS with Origin, which is refused here.
//
// Browsers since 2020 (Safari since 2023) send Sec-Fetch-Site with all of these but WebSockets.
// No script can set it or Origin. A page that has rebound its own name in the DNS to this address
// is same-origin in the browser's eyes; only Host betrays it.
//
// Callers with a bearer token are exempt: no browser adds one by itself. Anonymous callers are
// not: they have the place in the network, which the page's author may not have.

// The values of the label reason of watchproxy_browser_refusals_total.
const (
	ReasonHost        = "host"         // a page may have led the name here
	ReasonSite        = "site"         // another site's page, says Sec-Fetch-Site
	ReasonOrigin      = "origin"       // another origin's page, says Origin
	ReasonUntold      = "untold"       // an old browser does not tell the page
	ReasonContentType = "content_type" // a form can have sent it
	ReasonInteractive = "interactive"  // exec and the like are not for browsers
)

// PageReason tells why a request may be the work of a page that must not send it, or nothing.
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
		unsafe  = !safe(req.Method)
	)
	switch {
	case browser && interactive(req, rt):
		return ReasonInteractive
	case browser && !told && proxied && !unsafe: // even a GET may have effects there
		return ReasonUntold
	case browser && !told && simple && req.Method == http.MethodPost:
		return ReasonUntold
	case unsafe && simple && (req.Body != nil || h["Content-Type"] != nil):
		// A proxied service judges the forms of its own pages.
		if told && proxied || !browser && h.Get("User-Agent") != "" {
			return ""
		}
		return ReasonContentType
	}
	return ""
}

// Foreign tells by which header a browser says that a page of another origin sent the request. A
// tool that passes its own page's requests on brings that page's Origin, and Sec-Fetch-Site
// vouches for it.
func Foreign(h http.Header, secure bool, host string) (reason string) {
	sites := h["Sec-Fetch-Site"]
	for _, site := range sites {
		if site != "same-origin" && site != "none" {
			return ReasonSite
		}
	}
	for _, origin := range h["Origin"] {
		if !slices.Contains(sites, "same-origin") && !sameOrigin(origin, secure, host) {
			return ReasonOrigin
		}
	}
	return ""
}

// OwnOrigin is the origin of pages that the request's address serves.
func OwnOrigin(secure bool, host string) string {
	if secure {
		return "https://" + strings.TrimSuffix(host, ":443")
	}
	return "http://" + strings.TrimSuffix(host, ":80")
}

func sameOrigin(origin string, secure bool, host string) bool {
	return host != "" && strings.EqualFold(origin, OwnOrigin(secure, host))
}

// safe tells methods that should change nothing.
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// formType tells that a request has no Content-Type or one that needs no preflight (WHATWG Fetch,
// CORS-safelisted request-header).
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

// FromBrowser tells that a browser sent the request, as far as a page of another origin cannot
// hide it. Node's fetch sends Sec-Fetch-Mode and takes any language.
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

// MaybeBrowser tells that a browser may have sent the request, even for a page that takes itself
// for same-origin: in some browsers it can set the User-Agent, but it cannot leave the language out.
func MaybeBrowser(h http.Header) bool {
	return FromBrowser(h) || h["Accept-Language"] != nil || h["Origin"] != nil || h["Referer"] != nil ||
		h["Cookie"] != nil || h["Sec-Fetch-Mode"] != nil
}

// interactive tells requests that give a hold of a container or node, which browsers must not
// have, whichever page asks: exec, attach, port-forward, other upgrades, the kubelet's own API.
// A proxied service's page has the proxy's origin.
func interactive(req *exchange.Request, rt *exchange.Route) bool {
	switch rt.Subresource {
	case "attach", "exec", "portforward":
		return true
	case "proxy":
		return rt.GVR.Resource == "nodes"
	}
	return rt.Verb != "watch" && req.WantsUpgrade()
}

// Isolate keeps an answer from pages of other origins, also in browsers' other ways.
func Isolate(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

// hostname is a Host header without its port.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// LoopbackHost tells whether a Host header names this machine to itself.
func LoopbackHost(host string) bool {
	name := hostname(host)
	if ip := net.ParseIP(name); ip != nil {
		return ip.IsLoopback()
	}
	return name == "" || strings.EqualFold(name, "localhost")
}

// AddressHost tells whether a Host header is an address: no page can have led it elsewhere.
func AddressHost(host string) bool {
	_, err := netip.ParseAddr(hostname(host))
	return err == nil
}

// PageRefusals tell what to do about each reason to refuse what a web page may have sent.
var PageRefusals = map[string]string{
	ReasonHost:        "%s is not a loopback name, and a web page can have led it here: name localhost, 127.0.0.0/8 or [::1]",
	ReasonSite:        "a page of another site sent this request to %s, says Sec-Fetch-Site: type the address into the browser, or use another client",
	ReasonOrigin:      "a page of another origin than %s sent this request, says Origin: a client other than a browser should leave Origin out",
	ReasonUntold:      "an old browser may have sent this request to %s for any page: use a newer one, or a User-Agent without Mozilla",
	ReasonContentType: "any web page could have a browser send this request to %s: give it the Content-Type of its body, such as application/json",
	ReasonInteractive: "browsers may not exec, attach, forward ports or reach kubelets through %s: use kubectl, or a bearer token where clients are authenticated",
}

// ForbiddenPage refuses a request to an origin that a web page may have made a browser send.
func ForbiddenPage(reason, to string) metav1.Status {
	return exchange.Failure(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(PageRefusals[reason], strconv.Quote(to)))
}
