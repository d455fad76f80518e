package proxy

import (
	"fmt"
	"strconv"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// refuseBrowser refuses what a web page may have made a browser send, except with a bearer token.
func refuseBrowser(o *Options, req *exchange.Request) (refusal *exchange.Response) {
	if req.Identity != nil && req.Identity.Token {
		return nil
	}
	reason := access.ReasonHost
	if hostFits(o, req) {
		reason = pageReason(req)
	}
	if reason == "" {
		return nil
	}
	to := strconv.Quote(access.OwnOrigin(req.TLS != nil, req.Host))
	refusal = req.Refuse(exchange.Forbidden(fmt.Sprintf(access.PageRefusals[reason], to)))
	access.IsolatePage(refusal.Header)
	refusal.Last = true // no user's limit counts this connection
	return refusal
}

// hostFits reports whether a request's Host is safe: web pages cannot make this name resolve to the
// proxy (DNS rebinding). With TLS, a page's own name would not match the certificate.
func hostFits(o *Options, req *exchange.Request) bool {
	return access.LoopbackHost(req.Host) || o.Access != nil && o.TLS != nil ||
		o.AnyHost && !access.MaybeBrowser(req.Header)
}

func pageReason(req *exchange.Request) string {
	if reason := access.ForeignPage(req.Header, req.TLS != nil, req.Host); reason != "" {
		return reason
	}
	if access.FromBrowser(req.Header) && interactive(req) {
		return access.ReasonInteractive
	}
	return ""
}

// interactive reports whether a request controls a container or node: exec, attach, port-forward,
// other upgrades, and the kubelet's own API. Browsers may not send such a request even from a page
// with the proxy's origin, because pages of proxied services have this origin.
func interactive(req *exchange.Request) bool {
	switch req.Route.Subresource {
	case "attach", "exec", "portforward":
		return true
	case "proxy":
		return req.Route.GVR.Resource == "nodes"
	}
	return req.Route.Verb != "watch" && req.WantsUpgrade()
}
