package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// This file detects requests that a web page may have made a browser send. A page must not act as
// the browser's user: without a bearer token, the proxy admits a client by its network or its
// certificate, and a browser has these for every page. Without the server's consent, pages of other
// origins can make a browser send:
//
//   - WebSockets, whose responses they can read; every browser sends Origin with them;
//   - GET, HEAD and POST for images, frames, links and forms, whose responses they cannot read;
//   - other requests only after a preflight, an OPTIONS with Origin, which is refused here. If
//     clients are authenticated, upstream answers preflights, and the request itself needs a bearer
//     token.
//
// Browsers since 2020 (Safari since 2023) send Sec-Fetch-Site with all of these except WebSockets.
// Older ones are not detected. No script can set Sec-Fetch-Site or Origin. If a page rebinds its
// own DNS name to this address, its requests are same-origin, and only Host shows the page's name.
//
// Callers with a bearer token are exempt, because browsers never add a token on their own.
// Anonymous callers are not: the browser may be in a network that the page's author cannot reach.

// The reasons to refuse a request.
const (
	ReasonHost        = "host"        // a page may have made the name resolve to the proxy
	ReasonSite        = "site"        // Sec-Fetch-Site shows a page of another site
	ReasonOrigin      = "origin"      // Origin shows a page of another origin
	ReasonInteractive = "interactive" // browsers must not exec, attach and so on
)

// ForeignPage returns a reason if a header shows a page of another origin. With Sec-Fetch-Site
// same-origin, another Origin is accepted: a tool may forward the requests of its own page.
func ForeignPage(h http.Header, secure bool, host string) (reason string) {
	sites := h["Sec-Fetch-Site"]
	for _, site := range sites {
		if site != "same-origin" && site != "none" {
			return ReasonSite
		}
	}
	for _, origin := range h["Origin"] {
		if !slices.Contains(sites, "same-origin") &&
			(host == "" || !strings.EqualFold(origin, OwnOrigin(secure, host))) {
			return ReasonOrigin
		}
	}
	return ""
}

// OwnOrigin returns the origin of pages at the request's address.
func OwnOrigin(secure bool, host string) string {
	if secure {
		return "https://" + strings.TrimSuffix(host, ":443")
	}
	return "http://" + strings.TrimSuffix(host, ":80")
}

// FromBrowser reports whether headers that a page of another origin cannot hide show a browser.
// Node's fetch sends Sec-Fetch-Mode and accepts any language, so these two prove nothing.
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

// MaybeBrowser also detects requests from a page that the browser treats as same-origin. In some
// browsers such a page can set User-Agent, but it cannot remove Accept-Language.
func MaybeBrowser(h http.Header) bool {
	return FromBrowser(h) || h["Accept-Language"] != nil || h["Origin"] != nil ||
		h["Referer"] != nil || h["Cookie"] != nil || h["Sec-Fetch-Mode"] != nil
}

// IsolatePage sets headers that prevent pages of other origins from using a response.
func IsolatePage(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// LoopbackHost reports whether Host is a loopback name or address.
func LoopbackHost(host string) bool {
	name := hostname(host)
	if ip := net.ParseIP(name); ip != nil {
		return ip.IsLoopback()
	}
	return name == "" || strings.EqualFold(name, "localhost")
}

// AddressHost reports whether Host is an IP address. Pages cannot redirect an address.
func AddressHost(host string) bool {
	_, err := netip.ParseAddr(hostname(host))
	return err == nil
}

// PageRefusals are messages with a remedy for each reason.
var PageRefusals = map[string]string{
	ReasonHost: "%s is not a loopback name, and a web page can have led it here: " +
		"name localhost, 127.0.0.0/8 or [::1]",
	ReasonSite: "a page of another site sent this request to %s, says Sec-Fetch-Site: " +
		"type the address into the browser, or use another client",
	ReasonOrigin: "a page of another origin than %s sent this request, says Origin: " +
		"a client other than a browser should leave Origin out",
	ReasonInteractive: "browsers may not exec, attach, forward ports or reach kubelets " +
		"through %s: use kubectl, or a bearer token where clients are authenticated",
}
