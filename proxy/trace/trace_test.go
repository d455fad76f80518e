package trace

import (
	"context"
	"net/http"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// recording returns a tracer with a sampler for requests without a trace.
func recording(sampler sdktrace.Sampler) (*Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sampler)), sdktrace.WithSpanProcessor(spans))
	return &Tracer{provider, provider.Tracer(scope)}, spans
}

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

func traced(flags string, groups ...string) Request {
	r := Request{Name: "GET /api/v1/pods", Method: http.MethodGet, Header: http.Header{}, Received: time.Now()}
	if flags != "" {
		r.Header.Set("Traceparent", "00-"+clientTrace+"-"+clientSpan+"-"+flags)
	}
	if groups != nil {
		r.User = &user.DefaultInfo{Name: "u", Groups: groups}
	}
	return r
}

// Only privileged clients, and all clients without authentication, can continue their traces.
func TestTraceOfClient(t *testing.T) {
	never, always := sdktrace.NeverSample(), sdktrace.AlwaysSample()
	for what, test := range map[string]struct {
		sampler   sdktrace.Sampler
		request   Request
		recorded  bool
		continued bool
		links     int
	}{
		"privileged":                {never, traced("01", user.SystemPrivilegedGroup), true, true, 0},
		"monitoring":                {never, traced("01", user.MonitoringGroup), true, true, 0},
		"unauthenticated":           {never, traced("01"), true, true, 0},
		"privileged, not sampled":   {always, traced("00", user.SystemPrivilegedGroup), false, false, 0},
		"other":                     {never, traced("01", "readers"), false, false, 0},
		"other, sampled here":       {always, traced("01", "readers"), true, false, 1},
		"no trace, sampled here":    {always, traced("", "readers"), true, false, 0},
		"no trace":                  {never, traced("", user.SystemPrivilegedGroup), false, false, 0},
		"other, client's says no":   {always, traced("00", "readers"), true, false, 1},
		"malformed, sampled here":   {always, traced("zz"), true, false, 0},
		"malformed, not privileged": {never, traced("zz", "readers"), false, false, 0},
	} {
		tracer, spans := recording(test.sampler)
		ctx, span := tracer.Begin(t.Context(), test.request)
		End(span, http.StatusOK, "cache", "", "")
		if !test.recorded {
			if len(spans.Ended()) != 0 || ctx != t.Context() {
				t.Errorf("%s: %d spans were recorded", what, len(spans.Ended()))
			}
			continue
		}
		ended := spans.Ended()
		if len(ended) != 2 || ended[0].Name() != "authenticate" || ended[0].Parent().SpanID() != ended[1].SpanContext().SpanID() {
			t.Fatalf("%s: %v", what, ended)
		}
		root := ended[1]
		if continued := root.SpanContext().TraceID().String() == clientTrace && root.Parent().SpanID().String() == clientSpan; continued != test.continued {
			t.Errorf("%s: the client's trace is continued: %t, want %t", what, continued, test.continued)
		}
		if len(root.Links()) != test.links {
			t.Errorf("%s: %v", what, root.Links())
		}
	}
}

// Upstream receives the span of its request. If nothing is recorded, it receives the client's own
// headers.
func TestUpstreamContinuesTrace(t *testing.T) {
	tracer, spans := recording(sdktrace.AlwaysSample())
	for _, sampled := range []bool{true, false} {
		ctx := t.Context()
		var span Span
		if sampled {
			ctx, span = tracer.Begin(ctx, traced("", "readers"))
		}
		out, err := http.NewRequestWithContext(Within(context.Background(), ctx), http.MethodGet, "http://localhost", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		out.Header.Set("Traceparent", "client's")
		out.Header.Set("Tracestate", "client=1")
		EndUpstream(Upstream(out), &http.Response{StatusCode: http.StatusOK}, nil)
		got := out.Header.Get("Traceparent")
		if !sampled {
			if got != "client's" {
				t.Errorf("upstream gets %q", got)
			}
			continue
		}
		span.End()
		upstream := spans.Ended()[1]
		want := "00-" + span.SpanContext().TraceID().String() + "-" + upstream.SpanContext().SpanID().String() + "-01"
		if state := out.Header.Get("Tracestate"); state != "" {
			t.Errorf("upstream gets the state %q of another trace", state)
		}
		if got != want || upstream.Parent().SpanID() != span.SpanContext().SpanID() {
			t.Errorf("upstream gets %q, want %q", got, want)
		}
	}
}
