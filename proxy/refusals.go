package proxy

import (
	"github.com/watchproxy/watchproxy/proxy/browser"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// refuseBrowser refuses requests that a web page may have made a browser send, unless they bring a
// bearer token.
func (s *Server) refuseBrowser(req *exchange.Request, rt *exchange.Route) (refusal *exchange.Response) {
	if req.Identity != nil && req.Identity.Token {
		return nil
	}
	reason := browser.ReasonHost
	if s.hostFits(req) {
		reason = browser.PageReason(req, rt)
	}
	if reason == "" {
		return nil
	}
	s.metrics.Browsers.WithLabelValues("clients", reason).Inc()
	refusal = req.Fail(browser.ForbiddenPage(reason, browser.OwnOrigin(req.TLS != nil, req.Host)), exchange.FromProxy)
	browser.Isolate(refusal.Header)
	refusal.Close = true // its connection counts for nobody
	return refusal
}

// hostFits tells that no page can have led the request's Host here. A browser does not reach a
// Unix socket by itself, but a bridge may stand before it; a certificate fits its own names only.
func (s *Server) hostFits(req *exchange.Request) bool {
	o := s.options.Load()
	switch {
	case browser.LoopbackHost(req.Host), o.Access != nil && o.TLS != nil:
		return true
	case o.AnyHost, o.Access != nil:
		return !browser.MaybeBrowser(req.Header)
	}
	return false
}
