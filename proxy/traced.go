package proxy

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/proxy/trace"
)

// tracedRequest returns a request for its span. The span has no query, because queries may contain
// secrets.
func tracedRequest(req *exchange.Request, rt *exchange.Route, received time.Time) trace.Request {
	var u user.Info
	if req.Identity != nil {
		u = req.Identity.User
	}
	return trace.Request{Name: spanName(req.Method, rt), Method: req.Method, Path: req.Path, Header: req.Header, User: u, Received: received}
}

// spanName returns the name of a request's span. As in the apiserver, objects have placeholders.
func spanName(method string, rt *exchange.Route) string {
	if !rt.Resource {
		return method
	}
	segments := []string{method + " /apis", rt.GVR.Group, rt.GVR.Version}
	if rt.GVR.Group == "" {
		segments = []string{method + " /api", rt.GVR.Version}
	}
	if rt.Namespace != "" {
		segments = append(segments, "namespaces", "{:namespace}")
	}
	segments = append(segments, rt.GVR.Resource)
	if rt.Name != "" {
		segments = append(segments, "{:name}")
	}
	if rt.Subresource != "" {
		segments = append(segments, rt.Subresource)
	}
	return strings.Join(segments, "/")
}

// read asks the cache, in a span that records why the cache cannot answer.
func (s *Server) read(ctx context.Context, req *exchange.Request, rt *exchange.Route, insists bool) read.Verdict {
	ctx, span := trace.Start(ctx, "cache")
	defer span.End()
	v := s.reader.Answer(ctx, req, *rt, insists)
	if v.Answer == nil && span.IsRecording() {
		span.SetAttributes(attribute.String("watchproxy.reason", string(v.Reason)))
	}
	return v
}
