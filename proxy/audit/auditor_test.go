package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/natefinch/lumberjack.v2"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

const everything = "- level: Metadata\n"

// auditorOf returns an auditor with rules, and the path of its log. The log is closed at the end.
func auditorOf(tb testing.TB, rules string, adapt func(*Options)) (a *Auditor, log string) {
	tb.Helper()
	dir := tb.TempDir()
	o := Options{PolicyFile: filepath.Join(dir, "policy.yaml"), LogPath: filepath.Join(dir, "logs", "audit.log"), MaxSize: 100}
	if err := os.WriteFile(o.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n"+rules), 0o600); err != nil {
		tb.Fatal(err)
	}
	if adapt != nil {
		adapt(&o)
	}
	a, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
	})
	return a, o.LogPath
}

func requestOf(target string) *exchange.Request {
	r := &exchange.Request{Method: http.MethodGet, Target: target, Host: "localhost", Header: http.Header{"User-Agent": {"test"}}}
	r.SplitTarget()
	r.Identity = &access.Caller{User: &user.DefaultInfo{Name: "reader", Groups: []string{"readers"}}}
	return r
}

func eventsIn(tb testing.TB, log string) (all []auditv1.Event) {
	tb.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		tb.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			tb.Fatalf("%s: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

func stagesOf(events []auditv1.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, string(e.Stage))
	}
	return strings.Join(all, " ")
}

// openWatch returns a watch that counts its ends.
func openWatch(t *testing.T, ends *int) *watch.Watch {
	t.Helper()
	c, state := cachetest.ConfigMaps(t, 1)
	cursor, err := c.WatchAfter(cachetest.Filter(t, c), state)
	if err != nil {
		t.Fatal(err)
	}
	return watch.New(watch.Params{Feed: watch.Feed{Cache: c, Cursor: cursor}, Owner: (*owner)(ends)})
}

// owner counts the ends of a watch.
type owner int

func (*owner) Review(context.Context) error { return nil }

func (*owner) Unwritable() {}

func (o *owner) Done() { *o++ }

// Each kind of response has the same stages as in the apiserver's log. A response from upstream has
// no stages here, unless it is shared.
func TestStages(t *testing.T) {
	const list, watches, exec = "/api/v1/pods?resourceVersion=0", "/api/v1/pods?watch=1", "/api/v1/namespaces/a/pods/p/exec?command=ls"
	for what, test := range map[string]struct {
		target   string
		resp     *exchange.Response
		stranger bool
		panicked bool
		want     string
		source   string
	}{
		"list":     {target: list, resp: exchange.NewResponse(200, exchange.FromCache), want: "RequestReceived ResponseComplete", source: "cache"},
		"refused":  {target: list, resp: exchange.StatusResponse(exchange.TooManyRequests("no")), want: "RequestReceived ResponseComplete", source: "proxy"},
		"shared":   {target: list, resp: &exchange.Response{Status: 200, Source: exchange.FromUpstream, Unseen: true, Header: http.Header{}}, want: "RequestReceived ResponseComplete", source: "shared"},
		"upstream": {target: list, resp: exchange.NewResponse(200, exchange.FromUpstream)},
		"watch":    {target: watches, resp: exchange.NewResponse(200, exchange.FromCache), want: "RequestReceived ResponseStarted ResponseComplete", source: "cache"},
		"panic":    {target: list, resp: exchange.NewResponse(500, exchange.FromProxy), panicked: true, want: "RequestReceived Panic", source: "proxy"},
		"exec":     {target: exec, resp: exchange.StatusResponse(exchange.TooManyRequests("no")), want: "RequestReceived ResponseStarted ResponseComplete", source: "proxy"},
		"unknown":  {target: watches, resp: exchange.NewResponse(401, exchange.FromProxy), stranger: true, want: "ResponseStarted", source: "proxy"},
	} {
		t.Run(what, func(t *testing.T) {
			a, log := auditorOf(t, everything, nil)
			req := requestOf(test.target)
			if test.stranger {
				req.Identity = nil
			}
			a.Begin(req)
			if got := a.Answered(req, test.resp, time.Now(), test.panicked); got != test.resp {
				t.Fatalf("the answer was replaced by %d", got.Status)
			}
			events := eventsIn(t, log)
			if got := stagesOf(events); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if len(events) == 0 {
				return
			}
			last := events[len(events)-1]
			if last.Annotations[sourceKey] != test.source || int(last.ResponseStatus.Code) != test.resp.Status || string(last.AuditID) != req.AuditID() ||
				test.resp.Header.Get("Audit-Id") != req.AuditID() {
				t.Errorf("%+v", last)
			}
		})
	}
}

// A watch is complete when it ends. A watch of one ERROR event is complete at once.
func TestEndOfWatch(t *testing.T) {
	const began, complete = "RequestReceived ResponseStarted", "RequestReceived ResponseStarted ResponseComplete"
	ended := 0
	open := openWatch(t, &ended)
	for _, body := range []exchange.Stream{open, &watch.OnlyError{}} {
		a, log := auditorOf(t, everything, nil)
		resp := exchange.NewResponse(200, exchange.FromCache)
		resp.Body = body
		a.Answered(requestOf("/api/v1/pods?watch=1"), resp, time.Now(), false)
		if body == open {
			if got := stagesOf(eventsIn(t, log)); got != began {
				t.Errorf("open: %q", got)
			}
			open.Abandon()
		}
		if got := stagesOf(eventsIn(t, log)); got != complete || ended != 1 || resp.Body != body {
			t.Errorf("%T: ended %d times: %q", body, ended, got)
		}
	}
}

// The policy decides which requests are logged, by the same attributes as in the apiserver.
func TestPolicy(t *testing.T) {
	a, log := auditorOf(t, `- level: None
  users: [other]
- level: RequestResponse
  resources: [{group: apps}]
- level: Metadata
  omitStages: [RequestReceived]
  verbs: [list]
  resources: [{group: "", resources: [pods]}]
  namespaces: [a]
`, nil)
	ask := func(target, name string) {
		req := requestOf(target)
		req.Identity.User = &user.DefaultInfo{Name: name}
		a.Answered(req, exchange.NewResponse(200, exchange.FromCache), time.Now(), false)
	}
	for _, target := range []string{"/api/v1/namespaces/b/pods", "/api/v1/namespaces/a/pods/x", "/api/v1/namespaces/a/services", "/version"} {
		ask(target, "reader")
	}
	ask("/api/v1/namespaces/a/pods", "other")
	ask("/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", "reader")
	events := eventsIn(t, log)
	if len(events) != 1 || events[0].Stage != "ResponseComplete" || events[0].ObjectRef.Name != "x" || events[0].Verb != "list" {
		t.Errorf("%+v", events)
	}
	for target, want := range map[string]bool{
		"/apis/apps/v1/deployments": true, "/apis/apps/v1/namespaces/a/deployments/x?resourceVersion=0": true,
		"/apis/apps/v1/deployments?watch=1": false, "/api/v1/pods": false,
	} {
		if got := a.WantsBody(requestOf(target)); got != want {
			t.Errorf("%s: the body is wanted: %t, want %t", target, got, want)
		}
	}
}

// The event of an unknown client's request is short. The policy decides by the same path, verb,
// resource and namespace as for a user.
func TestUnknownClients(t *testing.T) {
	a, log := auditorOf(t, `- level: None
  verbs: [list]
  resources: [{group: "", resources: [pods]}]
- level: None
  nonResourceURLs: [/healthz*]
- level: Metadata
  namespaces: [a]
- level: Metadata
  nonResourceURLs: ["*"]
`, nil)
	ask := func(method, target string, header http.Header) (added []auditv1.Event) {
		before := len(eventsIn(t, log))
		req := &exchange.Request{Method: method, Target: target, Host: "localhost", Header: header}
		req.SplitTarget()
		a.Begin(req)
		a.Answered(req, exchange.NewResponse(http.StatusUnauthorized, exchange.FromProxy), time.Now(), false)
		return eventsIn(t, log)[before:]
	}
	const pods = "/api/v1/namespaces/a/pods"
	for target, verb := range map[string]string{
		pods: "", pods + "?watch=0&labelSelector=a": "", "/healthz/x": "", "/api/v1/namespaces/b/pods/x": "",
		pods + "?watch=1": "watch", pods + "?labelSelector=!!&fieldSelector=metadata.name%3Dx&watch": "watch", pods + "/x": "get",
		"/api/v1/namespaces/a/services": "list", "/api/v1/watch/namespaces/a/pods": "watch", "/version?watch=1": "get", "/%zz": "get",
	} {
		got := ask(http.MethodGet, target, http.Header{"X-Forwarded-For": {"192.0.2.1"}})
		if len(got) != min(len(verb), 1) {
			t.Errorf("%s: %d events", target, len(got))
			continue
		}
		if len(got) == 1 && (got[0].Verb != verb || got[0].RequestURI != strings.ReplaceAll(target, "%zz", "%25zz") || !slices.Equal(got[0].SourceIPs, []string{"192.0.2.1"})) {
			t.Errorf("%s: %+v", target, got[0])
		}
	}
	for selector, name := range map[string]string{"metadata.name%3Dx": "x", "metadata.name=x,spec.a=b": "", "metadata.name!=x": "", "metadata.name=%2F": ""} {
		if got := ask(http.MethodGet, pods+"?watch=1&fieldSelector="+selector, http.Header{}); len(got) != 1 || got[0].ObjectRef.Name != name {
			t.Errorf("%s: %+v", selector, got)
		}
	}
	long := strings.Repeat("1.1.1.1,", 500)
	if got := ask(http.MethodGet, pods+"?labelSelector="+long+"&watch=true", http.Header{}); len(got) != 1 || got[0].Verb != "watch" {
		t.Errorf("a watch with a long selector: %+v", got)
	}
	for name, got := range map[string][]auditv1.Event{
		"method":   ask(long, "/version", http.Header{}),
		"path":     ask(http.MethodGet, "/"+long, http.Header{}),
		"query":    ask(http.MethodGet, "/version?"+long, http.Header{}),
		"Audit-Id": ask(http.MethodGet, "/version", http.Header{"Audit-Id": {long}}),
		"headers":  ask(http.MethodGet, "/version", http.Header{"User-Agent": {long}, "X-Forwarded-For": {long}, "X-Real-Ip": {long}}),
	} {
		if text, err := json.Marshal(got); err != nil || len(got) != 1 || len(text) > 3*textMost {
			t.Errorf("a long %s: %d bytes", name, len(text))
		}
	}
}

// Requests for deprecated versions have the apiserver's annotations in the stages after the
// response.
func TestDeprecated(t *testing.T) {
	for warning, want := range map[string][2]string{
		`299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"`: {"true", ""},
		`299 - "a/v1beta1 B is deprecated in v1.30+, unavailable in v1.40+"`:                  {"true", "1.40"},
		`299 - "watchproxy has not followed the apiserver for 2s"`:                            {"", ""},
	} {
		a, log := auditorOf(t, everything, nil)
		resp := exchange.NewResponse(200, exchange.FromCache)
		resp.Header["Warning"] = []string{warning}
		a.Answered(requestOf("/api/v1/endpoints"), resp, time.Now(), false)
		events := eventsIn(t, log)
		if got := events[1].Annotations; got[deprecatedKey] != want[0] || got[removedKey] != want[1] || len(events[0].Annotations) > 0 {
			t.Errorf("%s: %v", warning, events)
		}
	}
}

// Without authentication, no event looks as if a user had been checked.
func TestUnauthenticated(t *testing.T) {
	a, log := auditorOf(t, everything, func(o *Options) { o.Unauthenticated = true })
	req := requestOf("/api/v1/pods")
	req.Identity = nil
	a.Answered(req, exchange.NewResponse(200, exchange.FromCache), time.Now(), false)
	e := eventsIn(t, log)[1]
	if e.User.Username != user.Anonymous || e.Annotations[authenticationKey] != "none" || e.Annotations[decisionKey] != "" {
		t.Errorf("%+v", e)
	}
}

// If the log cannot be written, requests fail only if the auditor is strict. The failure is always
// counted.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	registry := prometheus.NewRegistry()
	Register(registry)
	for strict, want := range map[bool]int{true: 500, false: 200} {
		for _, omitted := range []string{"", "  omitStages: [RequestReceived]\n"} {
			failed, rejected := counted(t, registry, "apiserver_audit_error_total"), counted(t, registry, "apiserver_audit_requests_rejected_total")
			a, _ := auditorOf(t, everything+omitted, func(o *Options) { o.LogPath, o.MaxSize, o.Strict = "/dev/full", 0, strict })
			ended := 0
			body := openWatch(t, &ended)
			for _, target := range []string{"/api/v1/pods", "/api/v1/pods?watch=1"} {
				resp := exchange.NewResponse(200, exchange.FromCache)
				if strings.Contains(target, "watch") {
					resp.Body = body
				}
				got := a.Answered(requestOf(target), resp, time.Now(), false)
				if got.Status != want || want == 500 && (!strings.Contains(string(got.Bytes()), "failed to store audit event")) {
					t.Errorf("strict %t, %s: %d %s", strict, target, got.Status, got.Bytes())
				}
			}
			if abandoned := ended == 1; abandoned != (want == 500) {
				t.Errorf("strict %t: the watch was abandoned: %t", strict, abandoned)
			}
			if counted(t, registry, "apiserver_audit_error_total") <= failed {
				t.Errorf("strict %t: no failure was counted", strict)
			}
			if n := counted(t, registry, "apiserver_audit_requests_rejected_total") - rejected; (n == 2) != (want == 500) {
				t.Errorf("strict %t: %v refused requests were counted", strict, n)
			}
		}
	}
}

// counted returns the sum of a metric.
func counted(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// Only the proxy's user can read the log. A full file is rotated according to the settings.
func TestRotation(t *testing.T) {
	a, log := auditorOf(t, everything, func(o *Options) { o.MaxSize, o.MaxBackups, o.MaxAge = 1, 2, 3 })
	if l := a.file.(*lumberjack.Logger); l.MaxSize != 1 || l.MaxBackups != 2 || l.MaxAge != 3 || l.Compress {
		t.Errorf("%+v", l)
	}
	req := requestOf("/api/v1/pods?labelSelector=" + strings.Repeat("x", 100<<10))
	for range 8 { // 1.6 MB
		a.Answered(req, exchange.NewResponse(200, exchange.FromCache), time.Now(), false)
	}
	files, err := os.ReadDir(filepath.Dir(log))
	if err != nil || len(files) != 2 {
		t.Fatalf("there are %d files: %v", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
}

func TestErrorsOfOptions(t *testing.T) {
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n"+everything), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"policyFile: ": {PolicyFile: filepath.Join(dir, "none"), LogPath: "-"},
		"logPath: ":    {PolicyFile: policy, LogPath: filepath.Join(policy, "x")},
	} {
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// BenchmarkAnswered measures the cost of auditing a response.
func BenchmarkAnswered(b *testing.B) {
	for _, level := range []string{"None", "Metadata"} {
		b.Run(level, func(b *testing.B) {
			a, _ := auditorOf(b, "- level: "+level+"\n  omitStages: [RequestReceived]\n", func(o *Options) { o.MaxBackups = 1 })
			req := requestOf("/api/v1/namespaces/a/pods?resourceVersion=0")
			req.Identity.Decided = access.Decision{User: req.Identity.User, Allowed: true, Reason: `RBAC: allowed by ClusterRoleBinding "readers"`}
			resp := exchange.NewResponse(200, exchange.FromCache)
			a.Begin(req)
			b.ReportAllocs()
			for b.Loop() {
				a.Answered(req, resp, time.Now(), false)
			}
		})
	}
}
