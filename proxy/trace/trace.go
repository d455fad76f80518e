// Package trace records spans of requests with OpenTelemetry. Its configuration has the apiserver's
// format.
//
//	GET /api/v1/namespaces/{:namespace}/pods     a request, until its response is ready to be written
//	  authenticate                               the review of the caller's credentials
//	  cache                                      the response to the read, or the reason for none
//	    authorize                                one review of access
//	    freshness                                the wait for an up-to-date cache
//	  forward                                    a forwarded request with its waits
//	    upstream                                 the parent of the apiserver's own span
//
// As in the apiserver, a span continues its client's trace (W3C trace context) only for trusted
// clients. These are the groups system:masters and system:monitoring, or all clients without
// authentication. The requests of other clients begin new traces, with links to the clients'
// traces. So these clients cannot control the number of spans. A request that is not sampled is
// forwarded with its client's headers.
//
// A request that is refused before it is routed, for example because its client is unknown, has no
// span. The span of a watch ends when the watch begins.
//
// Without tracing, [Start] only looks up a value in a context.
package trace

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// Span is a step of a request.
type Span = trace.Span

// scope is the name of the instrumented code.
const scope = "github.com/watchproxy/watchproxy"

var propagators = tracing.Propagators()

// Tracer begins the spans of requests. A nil Tracer records nothing.
type Tracer struct {
	provider tracing.TracerProvider
	tracer   trace.Tracer
}

// New returns a tracer that sends spans to an OTLP/gRPC endpoint. It does not wait for the
// endpoint.
func New(ctx context.Context, config *tracingapi.TracingConfiguration, version string) (*Tracer, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	provider, err := tracing.NewProvider(ctx, config, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", "watchproxy"), attribute.String("service.version", version), attribute.String("service.instance.id", host),
	)})
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return &Tracer{provider, provider.Tracer(scope)}, nil
}

// Close sends the last spans.
func (t *Tracer) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Request is a request that has been authenticated.
type Request struct {
	Name     string // with placeholders for the names of objects
	Method   string
	Path     string
	Header   http.Header
	User     user.Info // nil without authentication
	Received time.Time
}

// Begin begins the span of a request. If the request is not sampled, it returns ctx unchanged.
func (t *Tracer) Begin(ctx context.Context, r Request) (context.Context, Span) {
	within := ctx
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(r.Received)}
	remote := propagators.Extract(ctx, propagation.HeaderCarrier(r.Header))
	if decides(r.User) {
		within = remote
	} else if client := trace.SpanContextFromContext(remote); client.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: client}))
	}
	within, span := t.tracer.Start(within, text(r.Name), options...)
	if !span.IsRecording() {
		return ctx, span
	}
	span.SetAttributes(attribute.String("http.request.method", text(r.Method)), attribute.String("url.path", text(r.Path)))
	_, authenticate := Start(within, "authenticate", trace.WithTimestamp(r.Received))
	authenticate.End()
	return within, span
}

// decides reports whether a user's trace is continued. If so, the user's decision on sampling
// applies.
func decides(u user.Info) bool {
	return u == nil || slices.ContainsFunc(u.GetGroups(), func(g string) bool { return g == user.SystemPrivilegedGroup || g == user.MonitoringGroup })
}

// End ends the span of a request that has a response.
func End(span Span, status int, source, reason, auditID string) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("http.response.status_code", status), attribute.String("watchproxy.source", source),
			attribute.String("audit-id", text(auditID)))
		if reason != "" {
			span.SetAttributes(attribute.String("watchproxy.reason", reason))
		}
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	}
	span.End()
}

// Start begins a span inside the span in ctx. It records the new span only if the outer span is
// recorded.
func Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, Span) {
	outer := trace.SpanFromContext(ctx)
	if !outer.IsRecording() {
		return ctx, silent
	}
	return outer.TracerProvider().Tracer(scope).Start(ctx, name, options...)
}

// text returns a client's text for a span, shortened and as valid UTF-8. For other bytes the
// exporter fails, and then loses all spans of the same batch.
func text(s string) string {
	const most = 512
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}

// silent is a span that is not recorded.
var silent = trace.SpanFromContext(context.Background())

// Within returns ctx with the span of another context. It is for work that outlives a request.
func Within(ctx, other context.Context) context.Context {
	if span := trace.SpanFromContext(other); span.IsRecording() {
		return trace.ContextWithSpan(ctx, span)
	}
	return ctx
}

// Upstream begins the span of a request to upstream, and sends the span's context upstream.
func Upstream(out *http.Request) Span {
	// The option would allocate memory.
	if !trace.SpanFromContext(out.Context()).IsRecording() {
		return silent
	}
	ctx, span := Start(out.Context(), "upstream", trace.WithSpanKind(trace.SpanKindClient))
	out.Header.Del("Tracestate") // belongs to the client's traceparent
	propagators.Inject(ctx, propagation.HeaderCarrier(out.Header))
	return span
}

// EndUpstream ends the span of a request to upstream.
func EndUpstream(span Span, in *http.Response, err error) {
	if span.IsRecording() {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, "upstream did not answer")
		} else {
			span.SetAttributes(attribute.Int("http.response.status_code", in.StatusCode))
		}
	}
	span.End()
}
