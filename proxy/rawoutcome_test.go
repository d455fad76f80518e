package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// heard is a request as an apiserver reads it.
type heard struct {
	method, target, path, query string
	info                        *apirequest.RequestInfo
	infoErr                     string
	header                      http.Header
	body                        string
	whole                       bool // the body ended
}

func hear(r *http.Request) *heard {
	h := &heard{method: r.Method, target: r.RequestURI, path: r.URL.EscapedPath(), query: r.URL.RawQuery, header: r.Header.Clone()}
	info, err := access.RequestInfos.NewRequestInfo(r)
	if err != nil {
		h.infoErr = err.Error()
	}
	h.info = info
	body, err := io.ReadAll(r.Body)
	h.body, h.whole = string(body), err == nil
	return h
}

// tellsWho reports whether a header identifies a user to an apiserver.
func tellsWho(name string) bool {
	return name == "Authorization" || name == "Sec-Websocket-Protocol" || strings.HasPrefix(name, access.ImpersonatePrefix)
}

// endToEnd returns the headers that the proxy must pass on.
func (h *heard) endToEnd() http.Header {
	listed := strings.Split(strings.Join(h.header["Connection"], ","), ",")
	for i := range listed {
		listed[i] = http.CanonicalHeaderKey(strings.TrimSpace(listed[i]))
	}
	kept := http.Header{}
	for name, values := range h.header {
		switch {
		case slices.Contains([]string{
			"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		}, name), name == "Content-Length":
		case name == "User-Agent":
			// net/http sends this header itself, and drops an empty one.
			if values[0] != "" {
				kept[name] = values[:1]
			}
		case strings.HasPrefix(name, "X-Remote-"):
			// Front proxies set these headers; an apiserver trusts only a known front proxy.
		case slices.Contains(listed, name) && !tellsWho(name):
			// Headers in Connection end here (RFC 9110, 7.6.1). Identity headers must not end here.
		default:
			kept[name] = values
		}
	}
	return kept
}

// outcome is the proxy's handling of a request.
type outcome struct {
	method, target string
	route          exchange.Route
	query          string
	opened         bool   // a cache was opened
	sent           bool   // the request was forwarded
	heard          *heard // the request at upstream; nil if the connection was closed earlier
}

func (o *outcome) String() string {
	return fmt.Sprintf("%s %q (asked the cache: %t, forwarded: %t)", o.method, o.target, o.opened, o.sent)
}

// contradicts returns an error if the proxy reads a request differently from the apiserver, given
// the same bytes.
func (o *outcome) contradicts(want *heard) error {
	if o.method != want.method || o.target != want.target {
		return fmt.Errorf("%v, but the apiserver hears %s %q", o, want.method, want.target)
	}
	if o.opened {
		if err := o.misasks(want.info); err != nil {
			return fmt.Errorf("%v: %w", o, err)
		}
	}
	if o.heard == nil {
		return nil
	}
	if err := o.heard.differs(want); err != nil {
		return fmt.Errorf("%v: %w", o, err)
	}
	return nil
}

// misasks compares the attributes that the apiserver would authorize with the attributes that the
// proxy authorized before a cached response.
func (o *outcome) misasks(info *apirequest.RequestInfo) error {
	if !info.IsResourceRequest {
		return errors.New("asks a cache for what is no resource to the apiserver")
	}
	u := &user.DefaultInfo{Name: "somebody"}
	p, err := exchange.Parse(o.query)
	got := exchange.Asked{Route: o.route, Path: info.Path, Labels: p.Labels, Fields: p.Fields}.Attributes(u)
	if err != nil {
		return fmt.Errorf("asks a cache by a query that cannot be read: %w", err)
	}
	ctx := apirequest.WithRequestInfo(apirequest.WithUser(context.Background(), u), info)
	want, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return err
	}
	if g, w := attributesText(got), attributesText(want); g != w {
		return fmt.Errorf("asks a cache for %s\nthe apiserver would authorize %s", g, w)
	}
	return nil
}

// attributesText returns all data that an authorizer receives, except the API prefix. It omits
// malformed selectors, because authorizers do not receive them. A cache never answers requests with
// malformed selectors.
func attributesText(a authorizer.Attributes) string {
	byField, fieldErr := a.GetFieldSelector()
	byLabel, labelErr := a.GetLabelSelector()
	return fmt.Sprintf("%s %q %q %q %q %q in %q, resource %t, %q, fields %v %v, labels %v %v",
		a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(), a.GetName(), a.GetNamespace(),
		a.IsResourceRequest(), a.GetPath(), byField, fieldErr, byLabel, labelErr)
}

// differs compares a request that the proxy sent with the same request sent by the client itself.
func (h *heard) differs(want *heard) error {
	const forwardedFor = "X-Forwarded-For"
	headers := want.endToEnd()
	headers.Set(forwardedFor, strings.Join(append(headers.Values(forwardedFor), "127.0.0.1"), ", ")) // the proxy adds the client
	for _, part := range []struct {
		what      string
		got, want any
	}{
		{"method", h.method, want.method},
		{"path", h.path, want.path},
		{"query", h.query, want.query},
		{"meaning", fmt.Sprintf("%+v%s", h.info, h.infoErr), fmt.Sprintf("%+v%s", want.info, want.infoErr)},
		{"headers", fmt.Sprintf("%q", h.endToEnd()), fmt.Sprintf("%q", headers)},
	} {
		if part.got != part.want {
			return fmt.Errorf("upstream hears %s %v\nfrom the client itself %v", part.what, part.got, part.want)
		}
	}
	switch {
	case h.whole && !want.whole:
		return fmt.Errorf("upstream hears a body %q, from the client itself a broken one, %q", h.body, want.body)
	case h.whole && h.body != want.body, !strings.HasPrefix(want.body, h.body):
		return fmt.Errorf("upstream hears a body %q (whole: %t)\nfrom the client itself %q", h.body, h.whole, want.body)
	}
	return nil
}
